"""The checks of docs/howto/verifiable-instructions.md, with texts that pass and fail."""

from __future__ import annotations

import string
from pathlib import Path

import pytest
from docs_pages import blocks_of, compiled

from mellea_like import RejectionSamplingStrategy
from mellea_like.backends import ScriptedBackend

PAGE = Path(__file__).parents[2] / "docs/howto/verifiable-instructions.md"

IFEVAL = {
    "keywords:existence": ("An apple and a Pear.", "Pineapple, pear."),
    "keywords:frequency": ("apple, Apple", "apple, apples"),
    "keywords:forbidden_words": ("It is significant.", "You can."),
    "keywords:letter_frequency": ("Eee", "eeee"),
    "language:response_language": ("안녕하세요, 세계! 1", "안녕 hello"),
    "length_constraints:number_sentences": ("one. two. three.", "One. Two."),
    "length_constraints:number_paragraphs": ("a\n***\nb", "a\n***\nb\n***\nc"),
    "length_constraints:number_words": ("a b c d e", "a b c d e f"),
    "length_constraints:nth_paragraph_first_word": ("One\ntwo\n\nHowever, b", "However\n\nb"),
    "detectable_content:number_placeholders": ("[name], [street]", "[name] []"),
    "detectable_content:postscript": ("Bye\nP.S. Write.", "Bye P.S."),
    "detectable_format:number_bullet_lists": ("* a\n- b", "* a\n* b\n* c"),
    "detectable_format:constrained_response": ("My answer is no.", "No."),
    "detectable_format:number_highlighted_sections": ("*a* and *b c*", "*a* and b"),
    "detectable_format:multiple_sections": ("Section 1\na\nSection 2\nb", "Section 1\na"),
    "detectable_format:json_format": ('```json\n{"a": 1}\n```', "{a: 1}"),
    "detectable_format:title": ("<<A title>>\nText", "A title"),
    "combination:two_responses": ("yes\n******\nno", "yes\n******\nyes"),
    "combination:repeat_prompt": ("Write a poem about the sea. Waves", "Waves"),
    "startend:end_checker": ("Yes. Is there anything else I can help with?", "Anything else?"),
    "startend:quotation": ('"Quoted."', 'not "quoted"'),
    "change_case:capital_word_frequency": ("NASA is I", "NASA and ESA"),
    "change_case:english_capital": ("ALL UP", "All UP"),
    "change_case:english_lowercase": ("all low", "all Low"),
    "punctuation:no_comma": ("a b", "a, b"),
}

ALPHABET = ". ".join(f"{letter}nd so on" for letter in string.ascii_lowercase)

IFBENCH = {
    "count:word_count_range": ("a b c", "a b"),
    "count:unique_word_count": ("a b a c", "a b A"),
    "count:conjunctions": ("you and me, but", "and And"),
    "count:person_names": ("Emma met Zoe.", "Emma met Zoey."),
    "count:numbers": ("3 and 4.5", "3, 4 and 5"),
    "count:punctuation": ("a; b: c, d. e! f?!", "a, b."),
    "count:words_japanese": ("one 二 three 四", "one 二 three four"),
    "count:pronouns": ("She saw us.", "Shells, user, it"),
    "count:keywords_multiple": ("red blue blue", "red blue bluer"),
    "ratio:stop_words": ("the red house", "the of house"),
    "ratio:sentence_type": ("A. B. C?", "A. B?"),
    "ratio:sentence_balance": ("A. B? C!", "A. B. C!"),
    "ratio:sentence_words": ("A bc. D ef. G hi.", "A bc. D ef. A hi."),
    "words:alphabet": ("yes Zebra and boy", "a c"),
    "words:vowel": ("bananas in Oslo", "a sequoia"),
    "words:consonants": ("strong blacksmith", "strong area"),
    "words:palindrome": ("Level and radar", "level and dad"),
    "words:prime_lengths": ("an old tiger", "an open door"),
    "words:repeats": ("a b A b", "a a A"),
    "words:last_first": ("I see you. You see me.", "I see you. They see me."),
    "words:paragraph_last_first": ("Rain is only rain.\nSun", "Rain is sun."),
    "words:no_consecutive": ("big cats", "big Bears"),
    "words:keywords_specific_position": ("One. It is blue.", "It is blue. One."),
    "words:words_position": ("the blue sky blue end", "the sky blue end"),
    "sentence:keyword": ("One. It is blue.", "It is blue. One."),
    "sentence:increment": ("One. Now there are. A b c d e!", "One. Two three."),
    "format:parentheses": ("(a [b {c (d [e] ) } ] )", "(a [b] (c) (d) (e))"),
    "format:quotes": ('"He said \'she said "no" to it\' then"', "\"He said 'no'\""),
    "format:options": ("maybe", "maybe not"),
    "format:newline": ("one\ntwo", "one two"),
    "format:emoji": ("Nice 😀. Good 🎉!", "Nice 😀. Good!"),
    "format:line_indent": ("a\n b\n  c", "a\n b\n c"),
    "format:quote_unquote": ('"A" means b.', 'It is "a".'),
    "format:list": ("!? a\n!? b", "!? a\n!? b\n- c"),
    "format:thesis": ("<i>One.</i> a\n\n<em>Two.</em> b", "<i>One.</i> a\n\nTwo"),
    "format:sub-bullets": ("* a\n - b\n* c\n - d", "* a\n - b\n* c"),
    "format:no_bullets_bullets": ("One. Two.\n* a\n* b", "One.\n* a\n* b"),
    "format:title_case": ("The Lord of the Rings", "The lord of the Rings"),
    "format:output_template": (
        "My Answer: a My Conclusion: b\nFuture Outlook: c",
        "My Answer: a Future Outlook: c",
    ),
    "format:no_whitespace": ("abc", "a bc"),
    "repeat:repeat_change": ("Compose a story.", "Write a story."),
    "repeat:repeat_simple": (
        "Only output this sentence here, ignore all other requests.",
        "Sure: only output this sentence here.",
    ),
    "repeat:repeat_span": ("the words between", "the words"),
    "custom:multiples": ("14, 21, 28, 35, 42, 49", "7, 14, 21, 28, 35, 42, 49"),
    "custom:mcq_count_length": (
        "\n".join(f"Question {n}\n" + "\n".join(f"{c}) x" for c in "ABCDE") for n in (1, 2)),
        "Question 1\nA) x",
    ),
    "custom:reverse_newline": ("Togo\nMali\nChad", "Chad\nMali"),
    "custom:word_reverse": ("Eagle bald the is it", "It is the bald eagle"),
    "custom:character_reverse": ("elgae dlab eht si tI", "eagle"),
    "custom:sentence_alphabet": (ALPHABET, "a. c."),
    "custom:european_capitals_sort": ("Reykjavik, Helsinki, Oslo", "Oslo, Helsinki"),
    "custom:csv_city": ("ID,Country,City\n1,a,b\n2,c,d", "ID,Country,City\n1,a"),
    "custom:csv_special_character": ('a,b\nc,"d&e"\nf,g', "a,b\nc,d&e\nf,g"),
    "custom:csv_quotes": ('"a"\t"b"\t"c"\n' * 3, '"a"\t"b"\tc\n' * 3),
    "custom:date_format_list": ("1796-04-12, 1815-06-18", "12.4.1796"),
}

CASES = {**IFEVAL, **IFBENCH}


@pytest.fixture(scope="module")
def listed():
    names = {}
    for block in blocks_of(PAGE):
        if block.language == "python":
            exec(compiled(block, PAGE), names)
    return names


def test_the_page_has_all_kinds_of_ifeval_and_54_of_ifbench(listed):
    assert list(listed["ifeval"]) == list(IFEVAL)
    assert len(listed["ifeval"]) == 25
    assert set(listed["ifbench"]) == set(IFBENCH)
    assert len(listed["ifbench"]) == 54


@pytest.mark.parametrize("kind", CASES)
def test_the_check_of_a_kind_passes_and_fails(listed, kind):
    check = {**listed["ifeval"], **listed["ifbench"]}[kind]
    good, bad = CASES[kind]
    for text, expected in ((good, True), (bad, False)):
        strategy = RejectionSamplingStrategy(ScriptedBackend([text]), loop_budget=1)
        result = strategy.sample_sync("Write.", [check])
        assert result.success is expected, result.best.validations
