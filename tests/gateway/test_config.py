"""Configuration files: valid ones, and the errors that name a mistake's place and the remedy."""

from __future__ import annotations

import textwrap

import pytest
from pydantic import ValidationError

from mellea_like import Price
from mellea_like.gateway import ConfigError, GatewayConfig, read_config
from mellea_like.gateway.http.startup import read_again, read_ready_config

SECRET = "sk-very-secret-0123456789"

WHOLE = """\
upstreams:
  main:
    kind: openai
    base_url: http://127.0.0.1:9/v1
    api_key: ${UPSTREAM_KEY}
    model: big
    concurrency: 8
    requests_per_minute: 500
    tokens_per_minute: 100000
    price: [0.15, 0.60]
  toy: {kind: markov}
  mine: {kind: python, backend: "package.module:name"}
models:
  haiku:
    upstream: main
    judge: main
    strategy: repair
    attempts: 4
    lanes: 2
    schedule: staggered:0.5
    checks: ["lines==3", "words<=20"]
    requirements: [It mentions autumn.]
    budget: {requests: 10, output_tokens: 4000, money: 0.05, cancelled: reserved}
    options: {temperature: 0.8, max_tokens: 100, stop: [END], extra: {top_k: 20}}
    overrides: {attempts: 8, requirements: 2, checks: 4, fields: {min_p: forward}}
    when_nothing_passed: best
    json_schema: {type: string}
  toy.1:
    upstream: toy
streaming:
  keep_alive: 2.5
"""


def read(tmp_path, text: str, **environ: str) -> GatewayConfig:
    path = tmp_path / "gateway.yaml"
    path.write_text(textwrap.dedent(text), encoding="utf-8")
    return read_config(path, environ=environ)


def test_a_whole_configuration_is_read(tmp_path):
    config = read(tmp_path, WHOLE, UPSTREAM_KEY=SECRET)
    assert list(config.models) == ["haiku", "toy.1"]
    model = config.models["haiku"]
    assert (model.strategy, model.attempts, model.schedule) == ("repair", 4, "staggered:0.5")
    assert model.overrides.fields == {"min_p": "forward"}
    assert model.options.stop == ("END",)
    assert config.streaming.keep_alive == 2.5
    assert model.budget.make(name="b", prices={"m": Price(1, 1)}).cancelled == "reserved"
    assert config.upstreams["main"].kind == "openai"
    assert config.upstreams["main"].api_key.get_secret_value() == SECRET
    assert SECRET not in repr(config)


def test_the_schema_of_a_configuration_has_the_bounds_of_integers():
    sections = GatewayConfig.model_json_schema()["$defs"]
    port, retries = (
        sections[section]["properties"][name]
        for section, name in (("ServerConfig", "port"), ("ModelConfig", "retries"))
    )
    assert (port["minimum"], port["maximum"]) == (0, 65_535)
    assert (retries["minimum"], retries["maximum"]) == (0, 100)
    assert sections["OptionsSpec"]["properties"]["max_tokens"]["anyOf"][0]["minimum"] == 1


TOY = "upstreams: {main: {kind: markov}}\n"
ONE = TOY + "models: {m: {upstream: main}}\n"
MODEL = TOY + "models:\n  m:\n    upstream: main\n    "
END = "}}\nmodels: {m: {upstream: main}}\n"
MONEY = "models: {m: {upstream: main, budget: {money: 1}}}\n"
OPENAI = "upstreams: {main: {kind: openai, base_url: 'http://127.0.0.1:9/v1', model: x, "


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "upstreams: and models:"),
        ("models: {}\n", ": upstreams is missing: write upstreams: {main: {kind: openai"),
        (TOY, ": models is missing: write models: {mine: {upstream: main}}"),
        (TOY + "models: {}\n", "line 2: models: "),
        (ONE + "modles: {}\n", "there is no 'modles'; did you mean models?"),
        (ONE + "1: x\n", "there is no '1'"),
        (MODEL + "atempts: 3\n", "line 3: models.m: there is no 'atempts'; did you mean attempts?"),
        (
            TOY + "models: {m: {attempts: 3}}\n",
            "models.m: upstream is missing: write upstream: main",
        ),
        (MODEL + "attempts: 0\n", "line 5: models.m.attempts: must be at least 1"),
        (MODEL + "loop: 3\n", "line 3: models.m: loop is now called attempts"),
        (MODEL + "concurrency: 3\n", "models.m: concurrency is now called lanes"),
        (
            MODEL + "escalate: [{upstream: main, turns: 2}]\n",
            "models.m.escalate.0: turns is now called attempts",
        ),
        (MODEL + "attempts: yes\n", "line 5: models.m.attempts: must be an integer"),
        (
            MODEL + "attempts: 100\n    lanes: 100\n",
            "models.m: attempts 100 times lanes 100 is more than 1000",
        ),
        (
            MODEL + "strategy: hope\n",
            "models.m.strategy: must be 'rejection', 'repair' or 'multi-turn'",
        ),
        (MODEL + "timeout: .inf\n", "models.m.timeout: must be a finite number"),
        (MODEL + "checks: words<=20\n", "models.m.checks: must be a list"),
        (MODEL + "checks: [wrds<=20]\n", "did you mean words<=20?"),
        (MODEL + "json_schema: {type: 3}\n", "models.m.json_schema: json_schema: the schema is"),
        (MODEL + "json_schema: missing.json\n", "models.m.json_schema: there is no file "),
        (MODEL + "requirements: ['']\n", "models.m.requirements.0: must be a string that isn't em"),
        (MODEL + "select: tournament\n", "models.m.select: its upstream can't judge"),
        (
            MODEL + "select: collect:2\n    attempts: 2\n",
            "models.m.select: a gateway's model can't be combined with",
        ),
        (
            MODEL + "lanes: 2\n    escalate: [{upstream: main}]\n    escalate_when: cheaper\n",
            "escalate_when: cheaper can't be combined with lanes: 2: with racing lanes",
        ),
        (MODEL + "select: bst:words\n", "models.m.select: select 'bst:words' isn't one of"),
        (MODEL + "n: 2\n", "models.m.n: n is for best, vote, consensus, tournament, not for f"),
        (
            MODEL + "select: vote\n    n: 9\n",
            "'vote' needs 9 replies that pass, but attempts 3 times lanes 1 makes only 3",
        ),
        (MODEL + "requirements: [It rhymes.]\n", "models.m.requirements: its upstream can't judge"),
        (MODEL + "judge: nobody\n", "line 5: models.m.judge: there is no such upstream"),
        (TOY + "models: {m: {upstream: x}}\n", "models.m.upstream: there is no such upstream; "),
        (MODEL + "budget: {}\n", "models.m.budget: a budget needs a limit"),
        (MODEL + "budget: {money: 1}\n", "models.m.budget.money: upstreams.main has no price"),
        (MODEL + "escalate:\n      - upstream: x\n", "line 6: models.m.escalate.0.upstream: there"),
        (MODEL + "overrides: {fields: {api_key: forward}}\n", "api_key can't be set to forward: "),
        (
            MODEL + "overrides: {fields: {tools: forward}}\n",
            "the gateway itself handles this field",
        ),
        (
            MODEL + "overrides: {fields: {messages: drop}}\n",
            "the gateway itself handles this field",
        ),
        (MODEL + "overrides: {fields: {'a b': drop}}\n", "models.m.overrides.fields.a b"),
        (
            TOY + "models: {'a b': {upstream: main}}\n",
            "line 2: models.a b: invalid name: must be a string of the form",
        ),
        (TOY + "models: {m: }\n", "models.m: must be a mapping of names to values"),
        (
            "upstreams: {main: {" + END,
            "upstreams.main: kind is missing: write kind: openai, llama, pydantic-ai or",
        ),
        ("upstreams: {main: {kind: azure" + END, "'openai', 'llama'"),
        ("upstreams: {main: {kind: openai" + END, "model is missing"),
        (OPENAI + "modle: x" + END, "upstreams.main: there is no"),
        (OPENAI + "base_url: x" + END, "'base_url' appears twice"),
        (OPENAI + "price: [1]" + END, "upstreams.main.price: must be two amounts"),
        (OPENAI + "api_key_env: NOPE" + END, "NOPE is not set"),
        (OPENAI + "api_key: a, api_key_env: B" + END, "both set the key"),
        (
            "upstreams: {main: {kind: openai, base_url: 'file:/x'}}\nmodels: {m: {upstream: main}}",
            "upstreams.main: base_url must be a URL that starts with http://",
        ),
        (
            "upstreams: {main: {kind: llama" + END,
            "upstreams.main: gguf is missing: write gguf: model.gguf",
        ),
        (
            "upstreams: {main: {kind: llama, gguf: no.gguf" + END,
            "upstreams.main.gguf: there is no file ",
        ),
        (
            "upstreams: {main: {kind: markov, corpus: [no.txt]" + END,
            "upstreams.main.corpus: there is no file ",
        ),
        (
            "upstreams: {main: {kind: python, backend: nope" + END,
            "upstreams.main.backend: must be a string of the form",
        ),
        (
            "upstreams: {main: {kind: openai, base_url: 'http://h/', price: [1, 2]}}\n" + MONEY,
            "upstreams.main doesn't name its model",
        ),
        (
            ONE + "streaming: {keep_alive: 0}\n",
            "line 3: streaming.keep_alive: must be a number above 0",
        ),
        (ONE + "server: {port: 70000}\n", "line 3: server.port: must be at most 65535"),
        (ONE + "a: [\n", "line 4: it isn't valid YAML: "),
        (
            ONE + "a: {k: ${KEY}}\n",
            "expected ',' or '}', but got '{'; inside {...} and [...], put quotes",
        ),
        (ONE + "a: [k, ${KEY}]\n", 'put quotes around a variable: "${NAME}"'),
        (ONE + "a: [1, 2", "expected ',' or ']', but got '<stream end>'"),
        (ONE + "a: *sk-alias\n", "found undefined alias ..."),
        (ONE + "a: \x01\n", "it isn't valid YAML: ReaderError"),
        (ONE + "a: !!python/object:os.system x\n", "it isn't valid YAML: "),
        (ONE + "? [a]\n: b\n", "line 3: a name must be a string"),
        (ONE + "a: &x [*x]\n", "it is nested too deeply, or contains itself"),
        (ONE + "a: " + "[" * 500 + "\n", "it "),
        (ONE + "a: 2020-99-99\n", "it isn't valid YAML: ValueError"),
        (ONE + "a: ${NOPE}\n", "line 3: a: the environment variable NOPE is not set"),
        (ONE + "a: ${NO PE}\n", "the environment variable NO PE is not set"),
        (
            MODEL + "attempts: 1\n    attempts: 2\n",
            "line 6: models.m: 'attempts' appears twice: keep one",
        ),
        (TOY + "models:\n  m: {upstream: main}\n  m: {upstream: main}\n", "line 4: models: 'm' "),
    ],
)
def test_a_mistake_is_named_with_its_place(tmp_path, text, said):
    with pytest.raises(ConfigError) as caught:
        read(tmp_path, text)
    message = str(caught.value)
    assert said in message
    assert message.startswith(str(tmp_path / "gateway.yaml"))
    assert "Input should" not in message


MISTAKES = """\
upstreams:
  main: {kind: openai, model: x, price: [1], concurrency: 0}
  other: {kind: openai, modle: 3, pric: [1, 2], api_key: "${NOT_SET}"}
models:
  m: {upstream: main, attempts: 0, checks: ["wrds<3", "lines==1", "x"]}
  o: {upstream: third}
  o: {upstream: third}
keys:
  a: {budget: {}}
server: {port: -1}
"""


def test_all_mistakes_inside_sections_are_named_at_once(tmp_path):
    path = tmp_path / "gateway.yaml"
    path.write_text(MISTAKES, encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        read_ready_config(path)
    lines = str(caught.value).splitlines()
    assert all(line.startswith(f"{path}, line ") for line in lines)
    assert sorted(line.split(": ")[1] for line in lines) == [
        "keys.a.budget",
        "models",
        "models.m.attempts",
        "models.m.checks.0",
        "models.m.checks.2",
        "server.port",
        "upstreams.main.concurrency",
        "upstreams.main.price",
        "upstreams.other",
        "upstreams.other.api_key",
    ]
    (price,) = (line for line in lines if ": upstreams.main.price: " in line)
    assert price.endswith("[0.15, 0.60] or [0.15, 0.60, 0.075] or [0.15, 0.60, EUR]")
    (names,) = (line for line in lines if ": upstreams.other: " in line)
    assert "there is no 'modle'; did you mean model? " in names
    assert "there is no 'pric'; did you mean price? " in names


CONFLICTS = """\
upstreams:
  main: {kind: openai, model: x}
  third: {kind: python, backend: "no_such:b"}
models:
  m: {upstream: main, budget: {money: 1}, options: {max_tokens: 5}}
  n: {upstream: nope, judge: none}
  o: {upstream: third, select: collect:3}
keys:
  a: {env: NO_TOKEN}
  c: {env: SHORT}
server: {host: "no.such.host.invalid"}
"""


def test_all_mistakes_between_sections_are_named_at_once(tmp_path, monkeypatch):
    monkeypatch.setenv("SHORT", "abc")
    path = tmp_path / "gateway.yaml"
    path.write_text(CONFLICTS, encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        read_ready_config(path, port=8080)
    assert sorted(line.split(": ")[1] for line in str(caught.value).splitlines()) == [
        "keys.a",
        "keys.c",
        "models.m.budget.money",
        "models.n.judge",
        "models.n.upstream",
        "models.o.select",
        "server.host",
        "upstreams.main",
        "upstreams.third",
    ]


@pytest.mark.parametrize(
    "text",
    [
        WHOLE.replace("big", "[1]"),
        WHOLE.replace("kind: openai", "kind: oops"),
        WHOLE.replace("http://127.0.0.1:9/v1", "${UPSTREAM_KEY}"),
        WHOLE.replace("lines==3", "${UPSTREAM_KEY}:["),
        WHOLE.replace("api_key: ${UPSTREAM_KEY}", f"api_key: [{SECRET}]"),
        WHOLE.replace("api_key: ${UPSTREAM_KEY}", f"api_key: {SECRET}: x"),
        WHOLE.replace("api_key: ${UPSTREAM_KEY}", f'api_key: "{SECRET}'),
        WHOLE.replace("api_key: ${UPSTREAM_KEY}", f"api_key: *{SECRET}"),
        WHOLE.replace("api_key: ${UPSTREAM_KEY}", f"api_key: !{SECRET} x"),
        WHOLE.replace("api_key: ${UPSTREAM_KEY}", "api_key: ${UPSTREAM_KEY}\n    api_key_env: X"),
        WHOLE.replace("price: [0.15, 0.60]", "price: ${UPSTREAM_KEY}"),
    ],
)
def test_no_error_shows_a_key(tmp_path, text):
    with pytest.raises(ConfigError) as caught:
        read(tmp_path, text, UPSTREAM_KEY=SECRET)
    error: BaseException | None = caught.value
    while error is not None:  # Its causes and contexts are printed, too.
        assert SECRET not in str(error)
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)


@pytest.mark.parametrize(
    ("name", "used", "said"),
    [("model", "b", "there is no such upstream"), ("modle", "main", "there is no 'modle'")],
)
def test_an_error_of_a_configuration_made_in_python_shows_no_key(name, used, said):
    upstreams = {"main": {"kind": "openai", "api_key": SECRET, name: "x"}}
    with pytest.raises(ValidationError, match=said) as caught:
        GatewayConfig.model_validate({"upstreams": upstreams, "models": {"m": {"upstream": used}}})
    assert SECRET not in f"{caught.value}{caught.value.errors()}{caught.value.json()}"


def test_variables_are_put_into_texts_and_can_be_escaped(tmp_path):
    text = MODEL + "checks: ['contains:${A}-${B}', 'contains:$${A} $A']\n"
    config = read(tmp_path, text, A="one", B="${A}")
    with pytest.raises(ConfigError, match="check 'xy' is unknown"):  # Too short to be a secret.
        read(tmp_path, MODEL + "checks: ['${A}']\n", A="xy")
    assert config.models["m"].checks == ("contains:one-${A}", "contains:${A} $A")


def test_a_variable_may_hold_a_number(tmp_path):
    text = MODEL + "attempts: ${N}\n    timeout: ${N}\nserver:\n  port: ${N}\n"
    config = read(tmp_path, text, N="7")
    model = config.models["m"]
    assert (model.attempts, model.timeout, config.server.port) == (7, 7.0, 7)
    for wrong in ("0", "-1", "1.0", "\u0667"):
        with pytest.raises(ConfigError, match=r"models\.m\.attempts: must be "):
            read(tmp_path, text, N=wrong)


def test_the_variable_of_a_key_is_looked_for_where_the_key_is_read(tmp_path, monkeypatch):
    text = OPENAI + "api_key_env: MINE" + END
    with pytest.raises(ConfigError, match="MINE is not set"):
        read(tmp_path, text, MINE="for another program")
    monkeypatch.setenv("MINE", SECRET)
    assert read(tmp_path, text).upstreams["main"].key == SECRET
    monkeypatch.delenv("MINE")
    made = {"kind": "openai", "base_url": "http://127.0.0.1:9/v1", "api_key_env": "MINE"}
    config = {"upstreams": {"main": made}, "models": {"m": {"upstream": "main"}}}
    assert GatewayConfig.model_validate(config).upstreams["main"].key == ""


def test_a_part_may_be_used_again_by_an_alias(tmp_path):
    text = TOY + (
        "models:\n  a: &both {upstream: main, attempts: 7, checks: ['contains:${X}']}\n"
        "  b: *both\n  c: {<<: *both, attempts: 8}\n"
    )
    models = read(tmp_path, text, X="$${Y}").models
    assert models["a"] == models["b"]
    assert (models["c"].attempts, models["c"].checks) == (8, ("contains:$${Y}",))


def test_files_are_looked_for_beside_the_configuration(tmp_path):
    (tmp_path / "words.txt").write_text("a b c.", encoding="utf-8")
    (tmp_path / "reply.json").write_text('{"type": "object"}', encoding="utf-8")
    text = "upstreams: {main: {kind: markov, corpus: [words.txt]}}\n"
    config = read(tmp_path, text + "models: {m: {upstream: main, json_schema: reply.json}}\n")
    assert config.upstreams["main"].corpus == (tmp_path / "words.txt",)
    assert config.models["m"].json_schema == {"type": "object"}


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"\xff\xfe", "it isn't valid UTF-8, from byte 0 on"),
        (None, "can't be read: No such file or directory"),
    ],
)
def test_a_file_that_is_no_text_is_named(tmp_path, content, said):
    path = tmp_path / "gateway.yaml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError, match=said):
        read_config(path)


def test_a_configuration_does_not_change():
    config = GatewayConfig.model_validate(
        {"upstreams": {"toy": {"kind": "markov"}}, "models": {"m": {"upstream": "toy"}}}
    )
    with pytest.raises(ValueError, match="frozen"):
        config.models["m"].attempts = 5


def test_each_reload_says_that_a_changed_store_needs_a_restart(tmp_path, caplog):
    path, text = tmp_path / "gateway.yaml", TOY + "models: {m: {upstream: main}}\nstore: "
    path.write_text(f"{text}memory\n", encoding="utf-8")
    used = read_config(path)
    path.write_text(f"{text}spent.db\n", encoding="utf-8")
    for times in (1, 2):
        used = read_again(path, used)
        assert used.store == "memory"
        assert caplog.text.count("store has changed: restart the gateway") == times
