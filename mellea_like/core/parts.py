"""Images, sounds and files in messages. Nothing is fetched."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from functools import partial
from typing import Any, TypeAlias, cast

from mellea_like.core.display import bounded, fields_shown
from mellea_like.core.extra import NO_EXTRA, as_extra, with_extra

__all__ = ["Audio", "File", "Image", "Part", "Text"]

MOST_CHARACTERS = 80
"""The most characters of an address or a name in a placeholder, such as ``[image at ...]``."""

KB, MB = 1000, 1_000_000

_IMAGES = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
)
"""The first bytes of each kind of image, except WebP, whose name comes after the file's length."""

_OFFICE = "application/vnd.openxmlformats-officedocument"
_FILES = {
    "csv": "text/csv",
    "docx": f"{_OFFICE}.wordprocessingml.document",
    "html": "text/html",
    "json": "application/json",
    "md": "text/markdown",
    "pdf": "application/pdf",
    "pptx": f"{_OFFICE}.presentationml.presentation",
    "txt": "text/plain",
    "xlsx": f"{_OFFICE}.spreadsheetml.sheet",
    "xml": "text/xml",
}
"""Media types by file ending. Those in Python's ``mimetypes`` depend on the operating system."""

_SCHEME = re.compile(r"[A-Za-z][A-Za-z\d+.-]+:")
"""Matches a URL's scheme. It has two characters or more; a single letter is a Windows drive."""
_MEDIA_TYPE = re.compile(r"[\w.+-]+/[\w.+-]+")
_DATA_URL_HEAD = re.compile(r"data:(?P<type>[^;,]*)(?:;[^;,]*)*;base64")

LONGEST_HEAD = 1000
"""How many characters of a ``data:`` URL are searched for its comma; megabytes may follow."""


@dataclass(frozen=True, slots=True)
class Text:
    """A part of a message that is text.

    Args:
        text: the text.
        extra: more fields for servers of OpenAI's chat protocol, which are sent unchanged.

    Raises:
        TypeError: the text isn't a ``str``, or ``extra`` isn't a mapping.
    """

    text: str
    extra: Mapping[str, Any] = field(default=NO_EXTRA, repr=False, kw_only=True)

    __repr__ = fields_shown

    def __post_init__(self) -> None:
        _check(self, "a Text")

    def as_dict(self) -> dict[str, Any]:
        """Return the part in OpenAI's chat protocol."""
        return with_extra({"type": "text", "text": self.text}, self.extra)


@dataclass(frozen=True, slots=True)
class Image:
    """A picture, given either by its address or by its data. Nothing is fetched.

    Args:
        url: its address, which the server fetches. A ``data:`` URL is converted to ``data`` and
            ``media_type``.
        data: the bytes of its file.
        media_type: the type of the data, such as ``"image/png"``. PNG, JPEG, GIF and WebP are
            recognized by their first bytes. An address that the server fetches can't have a type.
        detail: how closely the model should look, if the server has such an option: ``"low"``,
            ``"high"`` or ``"auto"`` in OpenAI's protocol.
        extra: more fields for servers of OpenAI's chat protocol, which are sent unchanged.

    Raises:
        TypeError: an argument is of the wrong type.
        ValueError: there is both an address and data, or neither; the address is a path or an
            invalid ``data:`` URL; or the media type is unknown, invalid, or given with an address.
    """

    url: str | None = None
    data: bytes | None = field(default=None, repr=False)
    media_type: str | None = None
    detail: str | None = None
    extra: Mapping[str, Any] = field(default=NO_EXTRA, repr=False, kw_only=True)

    __repr__ = fields_shown

    def __post_init__(self) -> None:
        _check(self, "an Image", optional=True)
        if (self.url is None) == (self.data is None):
            msg = "an Image needs exactly one of url and data"
            raise ValueError(msg)
        if self.url is not None and self.url[:5].lower() == "data:":
            data, told = _from_data_url(self.url)
            object.__setattr__(self, "url", None)
            object.__setattr__(self, "data", data)
            object.__setattr__(self, "media_type", self.media_type or told)
        elif self.url is not None and not _SCHEME.match(self.url):
            given = bounded(repr(self.url), 200)
            msg = (
                f"an Image's url must start with a scheme such as https:, not {given}: to"
                " send a file, pass its bytes as data, as in Image(data=Path(...).read_bytes())"
            )
            raise ValueError(msg)
        _set_media_type(self, "an Image", "url", _image_type)

    @property
    def placeholder(self) -> str:
        """The picture's placeholder in a text, such as ``"[image/png, 12 KB]"``."""
        if self.data is None:
            return f"[image at {bounded(cast('str', self.url), MOST_CHARACTERS)}]"
        return f"[{self.media_type}, {shown_size(len(self.data))}]"

    def as_dict(self) -> dict[str, Any]:
        """Return the part in OpenAI's chat protocol, with any data in a ``data:`` URL."""
        url = self.url if self.data is None else _data_url(self.data, self.media_type)
        detail = {} if self.detail is None else {"detail": self.detail}
        written = {"type": "image_url", "image_url": {"url": url, **detail}}
        return with_extra(written, self.extra)


@dataclass(frozen=True, slots=True)
class Audio:
    """A sound.

    Args:
        data: the bytes of its file.
        format: the kind of file, such as ``"wav"`` or ``"mp3"``.
        extra: more fields for servers of OpenAI's chat protocol, which are sent unchanged.

    Raises:
        TypeError: an argument is of the wrong type.
        ValueError: the format is empty.
    """

    data: bytes = field(repr=False)
    format: str
    extra: Mapping[str, Any] = field(default=NO_EXTRA, repr=False, kw_only=True)

    __repr__ = fields_shown

    def __post_init__(self) -> None:
        _check(self, "an Audio")
        if not self.format:
            msg = "an Audio's format must name its file type, such as \"wav\", and can't be empty"
            raise ValueError(msg)

    @property
    def placeholder(self) -> str:
        """The sound's placeholder in a text, such as ``"[audio/wav, 80 KB]"``."""
        return f"[audio/{bounded(self.format, MOST_CHARACTERS)}, {shown_size(len(self.data))}]"

    def as_dict(self) -> dict[str, Any]:
        """Return the part in OpenAI's chat protocol."""
        sound = {"data": _base64(self.data), "format": self.format}
        return with_extra({"type": "input_audio", "input_audio": sound}, self.extra)


@dataclass(frozen=True, slots=True)
class File:
    """A document, given either by its data or by the id of an upload.

    Args:
        data: the bytes of the file.
        file_id: the id of a file that was uploaded to the server before.
        filename: the file's name.
        media_type: the type of the data, such as ``"application/pdf"``. By default, it follows
            from the ending of the file's name (for texts, PDF and Office files) or from the first
            bytes of a PDF. A ``file_id`` can't have a type.
        extra: more fields for servers of OpenAI's chat protocol, which are sent unchanged.

    Raises:
        TypeError: an argument is of the wrong type.
        ValueError: there is both data and an id, or neither; or the media type is unknown, invalid,
            or given with an id.
    """

    data: bytes | None = field(default=None, repr=False)
    file_id: str | None = None
    filename: str | None = None
    media_type: str | None = None
    extra: Mapping[str, Any] = field(default=NO_EXTRA, repr=False, kw_only=True)

    __repr__ = fields_shown

    def __post_init__(self) -> None:
        _check(self, "a File", optional=True)
        if (self.data is None) == (self.file_id is None):
            msg = "a File needs exactly one of data and file_id"
            raise ValueError(msg)
        _set_media_type(self, "a File", "file_id", partial(_file_type, self.filename))

    @property
    def placeholder(self) -> str:
        """The file's placeholder in a text, such as ``"[application/pdf, 80 KB, report.pdf]"``."""
        name = self.filename
        if self.data is None:
            return f"[file {bounded(name or cast('str', self.file_id), MOST_CHARACTERS)}]"
        named = f", {bounded(name, MOST_CHARACTERS)}" if name else ""
        return f"[{self.media_type}, {shown_size(len(self.data))}{named}]"

    def as_dict(self) -> dict[str, Any]:
        """Return the part in OpenAI's chat protocol, with any data in a ``data:`` URL."""
        told = {"file_id": self.file_id, "filename": self.filename}
        inside = {name: value for name, value in told.items() if value is not None}
        if self.data is not None:
            inside["file_data"] = _data_url(self.data, self.media_type)
        return with_extra({"type": "file", "file": inside}, self.extra)


Part: TypeAlias = Text | Image | Audio | File
"""A part of a message's content."""


def as_content(content: object) -> str | tuple[Part, ...]:
    """Return a message's content from parts, which may be plain strings; "" without parts."""
    kind = type(content).__name__
    if isinstance(content, Mapping | bytes) or not isinstance(content, Iterable):
        msg = f"a message's content must be a str or a sequence of parts, not {kind}"
        raise TypeError(msg)
    parts: list[Part] = []
    for part in cast("Iterable[object]", content):
        if isinstance(part, str):
            parts.append(Text(part))
        elif isinstance(part, Part):
            parts.append(part)
        else:
            msg = (
                "content can have str, Text, Image, Audio and File parts, not"
                f" {type(part).__name__}"
            )
            raise TypeError(msg)
    return tuple(parts) or ""


def part_from_dict(part: object) -> Part:
    """Read a part in OpenAI's chat protocol, or raise ``ValueError`` if it is wrong."""
    if isinstance(part, str):
        return Text(part)
    if not isinstance(part, Mapping):
        msg = f"a content part must be a dict with a type, not {type(part).__name__}"
        raise ValueError(msg)  # noqa: TRY004 (it is data that is wrong)
    given = cast("Mapping[str, Any]", part)
    kind = given.get("type")
    read = _READERS.get(kind) if isinstance(kind, str) else None
    if read is None:
        msg = f"a content part's type must be one of {', '.join(_READERS)}, not {kind!r}"
        raise ValueError(msg)
    try:
        return read(given)
    except (KeyError, TypeError, AttributeError) as exc:
        what = f"it lacks {exc}" if isinstance(exc, KeyError) else str(exc)
        msg = f"invalid content part of type {kind!r}: {what}"
        raise ValueError(msg) from exc


def _image(part: Mapping[str, Any]) -> Image:
    given = part["image_url"]
    if isinstance(given, str):
        return Image(given, detail=part.get("detail"))
    return Image(given["url"], detail=given.get("detail"))


def _audio(part: Mapping[str, Any]) -> Audio:
    given = part["input_audio"]
    return Audio(_from_base64(given["data"]), given["format"])


def _file(part: Mapping[str, Any]) -> File:
    given = part["file"]
    written, name = given.get("file_data"), given.get("filename")
    if written is None:
        return File(file_id=given.get("file_id"), filename=name)
    if written[:5].lower() != "data:":
        return File(_from_base64(written), filename=name)
    data, told = _from_data_url(written)
    return File(data, filename=name, media_type=told)


_READERS: dict[str, Callable[[Mapping[str, Any]], Part]] = {
    "text": lambda part: Text(part["text"]),
    "image_url": _image,
    "input_audio": _audio,
    "file": _file,
    "refusal": lambda part: Text(part["refusal"]),
}


def _check(part: Part, what: str, *, optional: bool = False) -> None:
    """Make sure that a part's fields have the right types, and make its ``extra`` immutable."""
    for field_ in fields(part)[:-1]:
        value, kind = getattr(part, field_.name), bytes if field_.name == "data" else str
        if not isinstance(value, kind) and not (optional and value is None):
            msg = f"{what}'s {field_.name} must be {kind.__name__}, not {type(value).__name__}"
            raise TypeError(msg)
    if part.extra is not NO_EXTRA:
        extra = as_extra(part.extra, f"a part of type {type(part).__name__}")
        object.__setattr__(part, "extra", extra)


def _set_media_type(
    part: Image | File, what: str, source: str, guess: Callable[[bytes], str]
) -> None:
    """Set the type of a part's data; refuse a type without data, and data without a type."""
    if part.data is None:
        if part.media_type is not None:
            msg = f"{what} with a {source} can't have a media_type: that is the type of data"
            raise ValueError(msg)
        return
    media_type = part.media_type or guess(part.data)
    if not media_type:
        msg = f'the type of {what}\'s data is unknown: pass it, such as media_type="image/png"'
        raise ValueError(msg)
    if not _MEDIA_TYPE.fullmatch(media_type):
        msg = f'{what}\'s media_type must look like "image/png", not {media_type!r}'
        raise ValueError(msg)
    object.__setattr__(part, "media_type", media_type)


def _image_type(data: bytes) -> str:
    """Recognize an image's type by its first bytes; empty if it is unknown."""
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "image/webp"
    return next((kind for start, kind in _IMAGES if data.startswith(start)), "")


def _file_type(filename: str | None, data: bytes) -> str:
    if data.startswith(b"%PDF-"):
        return "application/pdf"
    return _FILES.get((filename or "").rpartition(".")[2].lower(), "")


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


def _data_url(data: bytes, media_type: str | None) -> str:
    return f"data:{media_type};base64,{_base64(data)}"


def _from_base64(written: str) -> bytes:
    try:
        return base64.b64decode(written, validate=True)
    except (binascii.Error, ValueError) as exc:
        msg = f"the data isn't base64: {exc}"
        raise ValueError(msg) from None


def _from_data_url(url: str) -> tuple[bytes, str | None]:
    # The pattern is applied only to the head: it takes gigabytes of memory for megabytes of ";".
    head, comma, data = url[:LONGEST_HEAD].partition(",")
    found = _DATA_URL_HEAD.fullmatch(head.lower())
    if not comma or found is None:
        msg = f"a data: URL must look like 'data:image/png;base64,...', not {bounded(url, 40)!r}"
        raise ValueError(msg)
    return _from_base64(data + url[LONGEST_HEAD:]), found["type"] or None


def shown_size(count: int) -> str:
    """Return a number of bytes in a form for people, such as ``12 KB``."""
    if count < KB:
        return f"{count} bytes"
    return f"{count / KB:.0f} KB" if count < MB else f"{count / MB:,.1f} MB"
