"""Writes a bigram model of a text, exactly, into the weights of a llama: a GGUF file in a moment.

The embedding of token i is the i-th unit vector. The one block has zeros for weights, so that the
vector goes through it unchanged. The RMS norm before the output multiplies it by
``1 / sqrt(1/n + eps)``, which the norm's weight takes back. So the logits after token i are column
i of the output matrix: the logarithms of the probabilities with which words follow word i in the
text.

The vocabulary: an end token, a token that begins each reply, the 256 bytes, and the words of the
text. A word has a space before it, but for the first of a reply. Each line of the text is a reply;
after the end of a sentence, too, a reply may end. Between what the text says and what it does not
say lie the characters of JSON, so that a grammar finds its way to the end of a document.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from itertools import pairwise
from pathlib import Path

import gguf
import numpy as np

END, REPLY = 0, 1
BYTES = 2
WORDS = BYTES + 256

NEVER = -60.0
JSON_STRING = -20.0
"""After a quotation mark a sentence starts ..."""
JSON_SIGNS = {'"': -30.0, "}": -40.0, "]": -40.0, ",": -40.0, ":": -40.0, "{": -40.0, "[": -40.0}
"""... and where it may end, the string ends; where neither is allowed, the document goes on."""
JSON_DIGITS = -45.0
"""A number is soon over."""

EPSILON = 1e-6
HEAD = 32
CONTEXT = 8192

TEMPLATE = (
    "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n"
    "{% endfor %}{% if add_generation_prompt %}<reply>{% endif %}"
)


class BigramTable:
    """Which word follows which, and how often. The start and the end of a reply are None."""

    def __init__(self, text: str) -> None:
        self.follows: defaultdict[str | None, Counter[str | None]] = defaultdict(Counter)
        for line in text.splitlines():
            words = line.split()
            if not words:
                continue
            self.follows[None][words[0]] += 1
            for word, after in zip(words, [*words[1:], None], strict=True):
                self.follows[word][after] += 1
                if after is not None and re.search(r"[.!?]['\")]*$", word):
                    self.follows[word][None] += 1
                    self.follows[None][after] += 1
        if not self.follows:
            msg = "the text has no words"
            raise ValueError(msg)

    @property
    def words(self) -> list[str]:
        """All words, in order."""
        return sorted(word for word in self.follows if word is not None)

    def allows(self, text: str, *, whole: bool = True) -> bool:
        """Tell whether a text is one that the model can have generated."""
        words = text.split(" ")
        chain: list[str | None] = [None, *words, None]
        if not whole:
            chain.pop()
        return all(after in self.follows.get(word, ()) for word, after in pairwise(chain))


def build_bigram_gguf(text: str, path: str | Path) -> BigramTable:
    """Write the model of a text to a file; return the table that it follows."""
    table = BigramTable(text)
    tokens, ids, first_ids = _vocabulary(table)
    size = len(tokens)
    output = np.full((size, size), NEVER, np.float32)  # [the next token, the token before]
    for sign, logit in JSON_SIGNS.items():
        output[BYTES + ord(sign), :] = logit
    output[BYTES + ord("0") : BYTES + ord("9") + 1, :] = JSON_DIGITS
    total = table.follows[None].total()
    for word, count in table.follows[None].items():
        assert word is not None
        output[first_ids[word], REPLY] = math.log(count / total)
        output[first_ids[word], BYTES + ord('"')] = JSON_STRING + math.log(count / total)
    for word in table.words:
        after = table.follows[word]
        columns = [ids[word], *([first_ids[word]] if word in first_ids else [])]
        for next_word, count in after.items():
            row = END if next_word is None else ids[next_word]
            output[row, columns] = math.log(count / after.total())
    _write(Path(path), tokens, output)
    return table


def _vocabulary(table: BigramTable) -> tuple[list[str], dict[str, int], dict[str, int]]:
    """The tokens as the tokenizer writes them, and where the words stand: after one, and first."""
    tokens = ["<end>", "<reply>", *(f"\\x{byte:02x}" for byte in range(256))]
    ids, first_ids = {}, {}
    for word in table.words:
        ids[word] = len(tokens)
        tokens.append(_escaped(f" {word}"))
    for word in sorted(word for word in table.follows[None] if word is not None):
        if len(word.encode()) == 1:  # It is one of the bytes: no token twice.
            first_ids[word] = BYTES + word.encode()[0]
            continue
        first_ids[word] = len(tokens)
        tokens.append(_escaped(word))
    return tokens, ids, first_ids


def _escaped(text: str) -> str:
    return "".join(f"\\x{byte:02x}" for byte in text.encode())


def _write(path: Path, tokens: list[str], output: np.ndarray) -> None:
    size = len(tokens)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name("bigrams")
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(size)
    writer.add_block_count(1)
    writer.add_feed_forward_length(HEAD)
    writer.add_head_count(1)
    writer.add_head_count_kv(1)
    writer.add_key_length(HEAD)
    writer.add_value_length(HEAD)
    writer.add_rope_dimension_count(HEAD)
    writer.add_layer_norm_rms_eps(EPSILON)
    writer.add_vocab_size(size)
    # This tokenizer takes the longest token that matches, byte by byte: no merges are needed.
    writer.add_tokenizer_model("rwkv")
    writer.add_token_list(tokens)
    control, normal = gguf.TokenType.CONTROL, gguf.TokenType.NORMAL
    writer.add_token_types([control, control, *[normal] * (size - 2)])
    writer.add_eos_token_id(END)
    writer.add_add_bos_token(False)
    writer.add_chat_template(TEMPLATE)

    def zeros(rows: int, columns: int) -> np.ndarray:
        return np.zeros((rows, columns), np.float32)

    one = np.ones(size, np.float32)
    writer.add_tensor("token_embd.weight", np.eye(size, dtype=np.float16))
    writer.add_tensor("blk.0.attn_norm.weight", one)
    writer.add_tensor("blk.0.attn_q.weight", zeros(HEAD, size))
    writer.add_tensor("blk.0.attn_k.weight", zeros(HEAD, size))
    writer.add_tensor("blk.0.attn_v.weight", zeros(HEAD, size))
    writer.add_tensor("blk.0.attn_output.weight", zeros(size, HEAD))
    writer.add_tensor("blk.0.ffn_norm.weight", one)
    writer.add_tensor("blk.0.ffn_gate.weight", zeros(HEAD, size))
    writer.add_tensor("blk.0.ffn_up.weight", zeros(HEAD, size))
    writer.add_tensor("blk.0.ffn_down.weight", zeros(size, HEAD))
    writer.add_tensor("output_norm.weight", one * np.float32(math.sqrt(1 / size + EPSILON)))
    writer.add_tensor("output.weight", output)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
