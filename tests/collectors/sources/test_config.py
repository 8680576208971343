"""The configuration file: what stands in it is what the sources get, and a fault is named with file, key and expectation."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from collectors.sources.serving import ROOT

from app.alerts import definitions
from app.collectors.access import Access
from app.collectors.sources.kv_events import Subscription
from app.collectors.sources.prometheus import Server
from app.collectors.sources.scrape import Target
from app.config import Config, ConfigError, read
from app.live.collect import Log
from app.retention import Policy

WHOLE = """
[[target]]
url = "gpu-1:8000"
name = "first"
interval_s = 5
timeout_s = 2.5
bearer_env = "TOKEN"

[[target]]
url = "https://gpu-2/metrics"
user = "u"
password_file = "/run/secrets/p"
ca_file = "ca.pem"

[[prometheus]]
url = "https://mimir/prometheus/"
tenant = "team"
match = ["namespace=prod", 'job=~"vllm.*"']
step_s = 60

[[kv_events]]
endpoint = "tcp://gpu-1:5557"
topic = "kv"
instance = "gpu-1:8000"

[[log]]
path = "/var/log/none.log"
instance = "gpu-1:8000"

[otlp]
enabled = false

[retention]
raw_days = 7
minute_days = 30
hour_days = 60
max_gb = 100
min_free_gb = 2
memory_gb = 1

[alerts]
interval = "15s"

[[slo]]
name = "chat"
kind = "ttft"
threshold = "1s"
objective = "99%"

[[notify]]
name = "on call"
kind = "webhook"
url_env = "HOOK_URL_THAT_IS_NOT_SET"
"""


def written(folder: Path, text: str | bytes) -> Path:
    file = folder / "weaklink.toml"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    return file


def test_an_empty_file_collects_nothing(tmp_path: Path):
    found = read(written(tmp_path, ""))
    assert found.model_dump() == Config().model_dump()
    assert (found.definitions.slos, found.definitions.notifiers) == ((), ())


def test_everything_reaches_its_source(tmp_path: Path):
    found = read(written(tmp_path, WHOLE))
    assert [one.target() for one in found.target] == [
        Target("http://gpu-1:8000/metrics", "first", 5.0, 2.5, Access(bearer_env="TOKEN")),
        Target("https://gpu-2/metrics", access=Access(user="u", password_file="/run/secrets/p", ca_file="ca.pem")),
    ]
    assert [one.server() for one in found.prometheus] == [
        Server("https://mimir/prometheus", tenant="team", match=("namespace=prod", 'job=~"vllm.*"'), step_s=60)
    ]
    assert [one.subscription() for one in found.kv_events] == [Subscription("tcp://gpu-1:5557", "kv", "gpu-1:8000")]
    assert [one.log() for one in found.log] == [Log(Path("/var/log/none.log"), "gpu-1:8000")]
    assert not found.otlp.enabled
    assert found.retention.policy() == Policy(7, 30, 60, 100e9, 2e9, 1e9)
    file = written(tmp_path, WHOLE)
    assert found.definitions == definitions.read(file)  # what `serve` evaluates
    assert [one.name for one in found.definitions.slos] == ["chat"]
    assert found.definitions.interval_s == 15


def test_every_table_has_one_reader():
    assert set(Config.model_fields) == definitions.OTHERS
    assert definitions.OTHERS.isdisjoint(definitions.TABLES)


def test_what_lacks_on_this_machine_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("TOKEN", raising=False)
    assert read(written(tmp_path, WHOLE)).notes() == [
        "[[notify]] 'on call': url_env: the variable HOOK_URL_THAT_IS_NOT_SET is not set",
        "target[1]: environment variable TOKEN is not set",
        "target[2]: /run/secrets/p: cannot be read (FileNotFoundError)",
        "log[1]: /var/log/none.log: no such file",
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("x", "expected TOML: "),
        (b"\xff\xfe", "expected UTF-8"),
        ("targets = []", "targets: no such key"),
        ("target = 1", "target: expected a valid tuple"),
        ("[[target]]\nname='a'", "target[1].url: expected, but not there"),
        ("[[target]]\nurl='h:1'\ninterval_s=0.1", "target[1].interval_s: expected greater than or equal to 0.5"),
        ("[[target]]\nurl='h:1'\ninterval_s='1'", "target[1].interval_s: expected a valid number"),
        ("[[target]]\nurl='h:1'\ntoken='hush'", "target[1].token: not here: a secret stands in the environment or a file"),
        ("[[target]]\nurl='http://u:hush@h'", "target[1].url: expected a URL without user and password"),
        (
            "[[target]]\nurl='h:1'\n[[target]]\nurl='http://h:1/x'",
            "the file: expected each target at a host:port of its own, h:1",
        ),
        (
            "[[target]]\nurl='h:1'\nbearer_env='A'\nbearer_file='b'",
            "target[1]: expected the secret in the environment or in a file",
        ),
        ("[[target]]\nurl='h:1'\nbearer_env='A'\nuser='b'", "target[1]: expected a bearer token or a user with password"),
        ("[[target]]\nurl='h:1'\nkey_file='k'", "target[1]: expected cert_file beside key_file"),
        ("[[prometheus]]\nurl='h'\nmatch=['x']", "prometheus[1].match[1]: expected a label matcher"),
        ("[[kv_events]]\nendpoint='h:1'", "kv_events[1].endpoint: expected text that should match pattern"),
        ("[otlp]\nenabled='yes'", "otlp.enabled: expected a valid boolean"),
        ("[retention]\nraw_days=0", "retention.raw_days: expected greater than 0"),
        ("[retention]\nmemory_gb=0.1", "retention.memory_gb: expected greater than or equal to 0.25"),
        ("[[slo]]\nname='x'", "[[slo]] 1 'x': kind: expected one of"),
        ("[[notify]]\nname='x'\nkind='webhook'\nsecret='hush'", "[[notify]] 1 'x': secret: expected secret_env or secret_file"),
        ("[alerts]\nevery='1s'", "[alerts]: every: expected one of interval, dashboard"),
        ("[retention]\nraw_days=100", "retention: expected raw_days <= minute_days <= hour_days"),
    ],
)
def test_a_fault_is_named(tmp_path: Path, text: str | bytes, expected: str):
    file = written(tmp_path, text)
    with pytest.raises(ConfigError) as caught:
        read(file)
    assert str(caught.value).startswith(f"{file}: {expected}"), caught.value
    assert "hush" not in str(caught.value)


def test_all_faults_are_named_at_once(tmp_path: Path):
    with pytest.raises(ConfigError) as caught:
        read(written(tmp_path, "a=1\nb=2\n[[target]]\n[[slo]]\n"))
    assert len(str(caught.value).splitlines()) == 4


def test_the_verb(tmp_path: Path):
    def check(file: Path, *more: str) -> subprocess.CompletedProcess:
        return subprocess.run(
            [sys.executable, "-m", "app", "config", "check", str(file), *more],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )

    fine = check(written(tmp_path, WHOLE), "--format", "json")
    assert fine.returncode == 0
    said = json.loads(fine.stdout)
    assert said["target"] == ["http://gpu-1:8000/metrics", "https://gpu-2/metrics"]
    assert (said["slo"], said["notify"]) == (["chat"], ["on call"])
    assert "[[notify]] 'on call': url_env: the variable HOOK_URL_THAT_IS_NOT_SET is not set" in said["notes"]
    wrong = check(written(tmp_path, "a=1"))
    assert wrong.returncode == 1
    assert "weaklink.toml: a: no such key" in wrong.stderr
    assert "Traceback" not in wrong.stderr
    assert json.loads(check(written(tmp_path, "a=1"), "--format", "json").stdout)["ok"] is False
