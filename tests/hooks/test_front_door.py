"""`mellea_like.hooks` gives payload classes by name, and loads them when first named."""

from __future__ import annotations

import pytest

from mellea_like import hooks
from mellea_like.hooks import payloads


@pytest.mark.parametrize("name", payloads.__all__)
def test_payload_classes_are_importable_from_the_package(name):
    assert getattr(hooks, name) is getattr(payloads, name)


def test_every_public_name_is_listed_and_there():
    assert set(hooks.__all__) <= set(dir(hooks))
    assert all(hasattr(hooks, name) for name in hooks.__all__)


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        _ = hooks.Nothing
