"""The configurations in the documentation and the examples can be used unchanged."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from mellea_like.gateway import make_app, read_config

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "docs" / "howto" / page for page in ("gateway.md", "deploy.md")]
TEXT = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)
BLOCKS = re.findall(r"^```yaml\n(upstreams:.+?)^```$", TEXT, re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("text", BLOCKS, ids=range(len(BLOCKS)))
def test_a_configuration_on_the_page_can_be_used(text, tmp_path, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-for-a-test")
    monkeypatch.setenv("BILLING_TOKEN", "a-token-of-more-than-sixteen-characters")
    monkeypatch.setenv("METRICS_TOKEN", "another-token-of-more-than-sixteen")
    path = tmp_path / "gateway.yaml"
    path.write_text(text, encoding="utf-8")
    make_app(read_config(path))


def test_the_examples_comments_can_be_used_as_well(tmp_path, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-for-a-test")
    (tmp_path / "model.gguf").touch()
    text = (ROOT / "examples" / "gateway.yaml").read_text(encoding="utf-8")
    path = tmp_path / "gateway.yaml"
    path.write_text(re.sub(r"^  # ( *\w+:.*)$", r"  \1", text, flags=re.MULTILINE), "utf-8")
    assert list(read_config(path).upstreams) == ["toy", "main", "small"]
