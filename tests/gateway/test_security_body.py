"""Bodies: their size, their time, their headers, and JSON in the strict sense."""

from __future__ import annotations

import json
import time

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mellea_like.errors import ClientDisconnected
from mellea_like.gateway.config.gateway_config import ServerConfig
from mellea_like.gateway.http import body as body_module
from mellea_like.gateway.http.body import BodyMemory, check_headers, parse, read_body
from mellea_like.gateway.refusal import Refusal

MIB = 2**20


# --- what the headers say ------------------------------------------------------------------------


def fields(**given: str) -> list[tuple[bytes, bytes]]:
    shown = {"content_type": "application/json", **given}
    return [(n.replace("_", "-").encode(), v.encode()) for n, v in shown.items()]


@pytest.mark.parametrize(
    "headers",
    [
        fields(),
        fields(content_type="Application/JSON; charset=UTF-8"),
        fields(content_type='application/json;charset="utf-8"'),
        fields(content_type="application/json; boundary=x"),
        fields(content_encoding="identity"),
        fields(content_length="0"),
        fields(content_length=str(4 * MIB)),
        fields(transfer_encoding="chunked"),
    ],
)
def test_json_in_bounds_is_taken(headers):
    check_headers(headers, ServerConfig())


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ([], 415),
        (fields(content_type="text/plain"), 415),
        (fields(content_type="application/x-www-form-urlencoded"), 415),
        (fields(content_type="multipart/form-data; boundary=x"), 415),
        (fields(content_type="application/json; charset=utf-16"), 415),
        (fields(content_type="application/json; charset=utf-7"), 415),
        (fields(content_encoding="gzip"), 415),
        (fields(content_encoding="br"), 415),
        (fields(content_encoding="identity, gzip"), 415),
        (fields(content_encoding="DEFLATE"), 415),
        (fields(content_length=str(32 * MIB + 1)), 413),
        (fields(content_length="9" * 19), 413),
        (fields(content_length="0" * 30), 413),
        (fields(content_length="-1"), 400),
        (fields(content_length="1e3"), 400),
        (fields(content_length="+1"), 400),
        (fields(content_length="5", transfer_encoding="chunked"), 400),
        ([*fields(content_length="5"), (b"content-length", b"6")], 400),
        ([*fields(), (b"content-type", b"text/plain")], 400),
        ([*fields(), (b"content-encoding", b"gzip"), (b"content-encoding", b"identity")], 400),
    ],
)
def test_other_bodies_are_refused_by_their_headers(headers, status):
    with pytest.raises(Refusal) as caught:
        check_headers(headers, ServerConfig())
    assert caught.value.status == status


# --- reading -------------------------------------------------------------------------------------


def sending(*messages, seconds: float = 0.0):
    left = list(messages)

    async def receive():
        await anyio.sleep(seconds)
        if not left:
            await anyio.sleep_forever()
        return left.pop(0)

    return receive


def part(data: bytes, more: bool = True) -> dict:
    return {"type": "http.request", "body": data, "more_body": more}


async def read(receive, **server) -> bytes:
    with BodyMemory(1000).share() as take:
        return await read_body(receive, ServerConfig(**server), take)


@pytest.mark.anyio
async def test_a_body_is_read_to_its_end(virtual_clock):
    receive = sending(part(b"ab"), part(b""), part(b"c"), {"type": "http.request"}, seconds=1)
    assert await read(receive) == b"abc"
    exact = sending(part(b"x" * 10, more=False))
    assert len(await read(exact, max_body=10)) == 10


@pytest.mark.anyio
async def test_a_body_that_gets_too_long_is_given_up_at_once(virtual_clock):
    receive = sending(*[part(b"x" * 6)] * 100)
    with pytest.raises(Refusal) as caught:
        await read(receive, max_body=10)
    assert caught.value.status == 413
    # Only two parts were read; the rest is still there.
    for _ in range(98):
        await receive()


@pytest.mark.anyio
async def test_a_body_that_drips_is_given_up_however_often_some_of_it_comes(virtual_clock):
    begun = anyio.current_time()
    receive = sending(*[part(b"x")] * 1000, seconds=1)
    with pytest.raises(Refusal, match="within 30 s") as caught:
        await read(receive)
    assert caught.value.status == 408
    assert anyio.current_time() - begun == pytest.approx(30)


@pytest.mark.anyio
async def test_a_caller_that_leaves_amid_its_body_is_no_error(virtual_clock):
    with pytest.raises(ClientDisconnected):
        await read(sending(part(b"x"), {"type": "http.disconnect"}))


# --- JSON ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        '{"a": 1}',
        ' {"a" : [1, 2.5, -3e2, true, false, null, "x", {}] }\n',
        '{"a": "]]]]{{{{,,,,\\"[["}',
        '{"a": "\\\\"}',
        '{"a": "\\ud83d\\ude00"}',
        '{"\u00e9": "\u2028\U0001f600"}',
        '{"a": 18446744073709551615}',
        '{"a": {"a": 1}, "b": {"a": 1}}',
    ],
)
def test_json_is_read_as_python_reads_it(text):
    assert parse(text.encode(), 32) == json.loads(text)


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "Expecting value"),
        (b"{", "brackets don't match"),
        (b'{"a": [}', "."),
        (b'{"a": 1}]', "brackets don't match"),
        (b'{"a": "x', "."),
        (b"{'a': 1}", "Expecting"),
        (b'{"a": 1,}', "."),
        (b'{"a": 1} {"b": 2}', "Extra data"),
        (b"[]", "isn't an object"),
        (b'"text"', "isn't an object"),
        (b"null", "isn't an object"),
        (b'{"a": NaN}', "not valid in JSON"),
        (b'{"a": Infinity}', "not valid in JSON"),
        (b'{"a": -Infinity}', "not valid in JSON"),
        (b'{"a": 1e999}', "too large"),
        (b'{"a": -1e999}', "too large"),
        (b'{"a": ' + b"1" * 5000 + b"}", "too large"),
        (b'{"a": 1, "a": 2}', "the name 'a' twice"),
        (b'{"x": [{"b": 1, "a": 1, "a": 1}]}', "the name 'a' twice"),
        (b'{"a": 1, "\\u0061": 2}', "twice"),
        (b'{"a": "\xff"}', "isn't UTF-8"),
        (b'{"a": "\xed\xa0\x80"}', "isn't UTF-8"),
        (b'{"a": "\xc0\xaf"}', "isn't UTF-8"),
        ('{"a": 1}'.encode("utf-16"), "UTF-8"),
        ('{"a": 1}'.encode("utf-32"), "."),
        (b'\xef\xbb\xbf{"a": 1}', "BOM"),
        (b'{"a": "\\ud800"}', "surrogate"),
        (b'{"a": "\\ude00\\ud83d"}', "surrogate"),
        (b'{"\\udfff": 1}', "surrogate"),
        (b'{"a": "\x00"}', "control character"),
        (b'{"a": "\n"}', "control character"),
        (b'{"a": "\\x41"}', "."),
        (b'{"a": 01}', "."),
        (b'{"a": .5}', "."),
    ],
)
def test_what_is_no_strict_json_is_400_and_not_shown(data, why):
    with pytest.raises(Refusal, match=why) as caught:
        parse(data, 32)
    assert (caught.value.status, caught.value.code) == (400, "invalid_json")
    assert caught.value.__cause__ is caught.value.__context__ is None


@pytest.mark.parametrize(("opening", "closing"), [(b"[", b"]"), (b'{"a":', b"}")])
@pytest.mark.parametrize("depth", [5, 32, 200])
def test_depth_is_counted_to_the_level(opening, closing, depth):
    def nested(levels: int) -> bytes:
        inner = levels - 1
        return b'{"x":' + opening * inner + b"1" + closing * inner + b"}"

    parse(nested(depth), depth)
    with pytest.raises(Refusal, match=f"deeper than {depth} levels"):
        parse(nested(depth + 1), depth)


HOSTILE = {
    "open brackets": b"[" * (4 * MIB),
    "a comb": b"[" * (2 * MIB) + b"]" * (2 * MIB),
    "empty lists": b'{"a":[' + b"[]," * (MIB) + b"[]]}",
    "empty texts": b'{"a":[' + b'"",' * MIB + b'""]}',
    "touching texts": b'""' * (2 * MIB),
    "escaped quotes": b'{"a":"' + b'\\"' * (2 * MIB - 4) + b'"}',
    "an open text of escaped quotes": b'"' + b'\\"' * (2 * MIB),
    "backslashes": b'"' + b"\\" * (4 * MIB),
    "texts of backslashes": b'"\\\\"' * MIB,
    "digits": b'{"a":' + b"9" * (4 * MIB) + b"}",
    "digits of a fraction": b'{"a":0.' + b"9" * (4 * MIB) + b"}",
    "numbers": b'{"a":[' + b"1," * (2 * MIB) + b"1]}",
    "objects": b'{"a":[' + b'{"b":1},' * (MIB // 2) + b"{}]}",
    "blanks": b" " * (4 * MIB) + b"{}",
    "half pairs": b'{"a":"' + b"\\ud83d" * (4 * MIB // 6) + b'"}',
}


@pytest.mark.parametrize("data", HOSTILE.values(), ids=HOSTILE)
def test_no_body_takes_long_to_read_or_to_refuse(data):
    begun = time.process_time()
    said = b""
    try:
        parse(data[: 4 * MIB], 32)
    except Refusal as refusal:
        said = refusal.body()
    assert len(said) < 300
    assert time.process_time() - begun < 0.5  # About 0.05 s on an idle machine.


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**60), 2**60)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text('ab[]{}\\",', max_size=3), inner, max_size=3)
    ),
    max_leaves=4,
)


def depth(value: object) -> int:
    if isinstance(value, dict):
        return 1 + max(map(depth, value.values()), default=0)
    return 1 + max(map(depth, value), default=0) if isinstance(value, list) else 0


@given(st.dictionaries(st.text(max_size=3), JSON, max_size=3), st.booleans(), st.integers(4, 8))
def test_whatever_json_there_is_comes_out_as_it_went_in_or_is_too_deep(value, ascii_only, most):
    try:
        data = json.dumps(value, ensure_ascii=ascii_only).encode()
    except UnicodeEncodeError:
        return
    if depth(value) <= most:
        assert parse(data, most) == value
    else:
        with pytest.raises(Refusal, match="deeper"):
            parse(data, most)


@given(st.binary(max_size=60) | st.text('{}[]",:\\u0d8 1eN', max_size=40).map(str.encode))
def test_any_bytes_are_an_object_or_a_400(data):
    status = 200
    try:
        assert isinstance(parse(data, 4), dict)
    except Refusal as refusal:
        status = refusal.status
    assert status in {200, 400}


def test_the_cheap_check_counts_what_it_says():
    most = body_module.MOST_PARTS
    assert parse(b'{"a":[' + b"1," * (most - 5) + b"1]}", 4)
    with pytest.raises(Refusal, match="strings"):
        parse(b'{"a":' + b'""' * (most + 1) + b"}", 4)
    escaped = '"' * 2 * most
    assert parse(json.dumps({"a": escaped}).encode(), 4) == {"a": escaped}
    with pytest.raises(Refusal, match="brackets and commas"):
        parse(b'{"a":[' + b"1," * (most - 2) + b"1]}", 4)
