"""The examples of deploy/ fit the program: options, paths, rights."""

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any, Final

import pytest
import typer
import yaml

from app.cli import app
from app.collectors.discovery import Dns, Kubernetes
from app.config import read
from app.live.collect import Collection
from app.routes import routes
from app.store import Store

DEPLOY: Final = Path(__file__).resolve().parent.parent / "deploy"


def options(verb: str) -> set[str]:
    command = typer.main.get_command(app).commands[verb]  # type: ignore[attr-defined]
    return {flag for one in command.params for flag in one.opts}


def test_the_example_configuration_is_right_and_has_every_table():
    found = read(DEPLOY / "weaklink.toml")
    assert len(found.discover) == 4
    assert found.retention.policy().max_bytes == 200e9
    assert {"target", "discover", "retention", "login"} <= set(tomllib.loads((DEPLOY / "weaklink.toml").read_text()))


@pytest.mark.parametrize("name", ["weaklink.service", "Containerfile", "kubernetes.yaml", "helm-values.yaml"])
def test_only_options_that_serve_has(name: str):
    text = (DEPLOY / name).read_text()
    serve = next(line for line in text.splitlines() if "serve" in line and "--store" in line)
    flags = set(re.findall(r"--[a-z-]+", serve))
    assert flags
    assert flags <= options("serve")


def test_the_helm_values_configure_and_probe_what_there_is(tmp_path: Path):
    found = yaml.safe_load((DEPLOY / "helm-values.yaml").read_text())
    (tmp_path / "weaklink.toml").write_text(found["configMaps"]["config"]["data"]["weaklink.toml"])
    assert read(tmp_path / "weaklink.toml").discover[0].discovery().where == Dns("vllm-headless.prod.svc.cluster.local", 8000)
    container = found["controllers"]["main"]["containers"]["main"]
    with Store() as store:
        paths = {route.path for route in routes(store, Collection(), guarded=True)}
    assert {one["spec"]["httpGet"]["path"] for one in container["probes"].values()} <= paths
    assert found["controllers"]["main"]["replicas"] == 1


def documents() -> dict[str, Any]:
    return {one["kind"]: one for one in yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text())}


def test_the_cluster_s_rights_and_probes_are_those_the_program_needs(tmp_path: Path):
    found = documents()
    (rule,) = found["Role"]["rules"]
    assert (rule["apiGroups"], rule["resources"], set(rule["verbs"])) == (["discovery.k8s.io"], ["endpointslices"], {"get", "list"})
    (tmp_path / "weaklink.toml").write_text(found["ConfigMap"]["data"]["weaklink.toml"])
    assert read(tmp_path / "weaklink.toml").discover[0].discovery().where == Kubernetes("prod", "vllm", "http")
    pod = found["Deployment"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    with Store() as store:
        paths = {route.path for route in routes(store, Collection(), guarded=True)}
    assert {container[probe]["httpGet"]["path"] for probe in ("readinessProbe", "livenessProbe")} <= paths
    assert pod["securityContext"]["runAsNonRoot"]
    assert found["Deployment"]["spec"]["strategy"] == {"type": "Recreate"}  # two pods cannot hold one store
    assert container["args"][0] == "serve"


def test_the_image_runs_as_somebody_and_checks_its_health():
    text = (DEPLOY / "Containerfile").read_text()
    assert re.search(r"^USER 10001$", text, re.MULTILINE)
    assert "/healthz" in text
    assert "WEAKLINK_TOKEN=" in text
    assert not re.search(r"^ENV .*TOKEN", text, re.MULTILINE)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_shells_can_complete(shell: str):
    environment = {**os.environ, "_WEAKLINK_COMPLETE": f"source_{shell}"}
    code = "import sys; sys.argv = ['weaklink']; from app.cli import app; app(prog_name='weaklink')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=False)
    assert "_WEAKLINK_COMPLETE" in done.stdout, done.stderr
