"""What docker/ says agrees with the settings, the code and itself."""

from __future__ import annotations

import re
import shutil
import subprocess
import tomllib
from ipaddress import ip_address, ip_network
from pathlib import Path

import pytest
import yaml
from pydantic import BaseModel

from core.engines.emulated.config import parser
from core.settings import Settings, load_settings

ROOT = Path(__file__).resolve().parents[2]
DOCKER = ROOT / "docker"
COMPOSE = yaml.safe_load((DOCKER / "compose.yaml").read_text())
SERVICES = COMPOSE["services"]
NGINX = (DOCKER / "nginx" / "nginx.conf").read_text()
DOCKERFILE = (DOCKER / "Dockerfile").read_text()
KUBERNETES = [
    document
    for path in sorted((DOCKER / "kubernetes").glob("*.yaml"))
    for document in yaml.safe_load_all(path.read_text())
]
TOKEN = "t" * 32


def objects(kind):
    return {d["metadata"]["name"]: d for d in KUBERNETES if d["kind"] == kind}


def settings_of(text, tmp_path) -> Settings:
    path = tmp_path / "conductor.toml"
    path.write_text(text)
    return load_settings(path)


@pytest.fixture
def compose_settings(tmp_path):
    return settings_of((DOCKER / "conductor.toml").read_text(), tmp_path)


@pytest.fixture
def kubernetes_settings(tmp_path):
    return settings_of(objects("ConfigMap")["conductor"]["data"]["conductor.toml"], tmp_path)


def is_setting(variable: str) -> bool:
    """Whether an environment variable names a setting."""
    model: type[BaseModel] = Settings
    *groups, last = variable.removeprefix("CONDUCTOR_").lower().split("__")
    for group in groups:
        model = model.model_fields[group].annotation
    return last in model.model_fields


def test_environment_variables_are_settings():
    named = set(re.findall(r"\b(CONDUCTOR_[A-Z_]+)=", DOCKERFILE))
    for service in SERVICES.values():
        named |= {name for name in service.get("environment", {}) if name.startswith("CONDUCTOR")}
    for deployment in objects("Deployment").values():
        for container in deployment["spec"]["template"]["spec"]["containers"]:
            named |= {variable["name"] for variable in container.get("env", [])}
    assert len(named) >= 3
    assert [name for name in named if not is_setting(name)] == []


def test_what_compose_asks_of_the_environment_is_in_the_example():
    asked = set(re.findall(r"\$\{([A-Z_]+)", (DOCKER / "compose.yaml").read_text()))
    given = set(re.findall(r"^([A-Z_]+)=", (DOCKER / "example.env").read_text(), re.MULTILINE))
    assert asked == given


def test_ports_agree(compose_settings, kubernetes_settings):
    s, k = compose_settings, kubernetes_settings
    ports = [s.server.port, s.history.port, s.console.port]
    assert [k.server.port, k.history.port, k.console.port] == ports
    exposed = re.search(r"^EXPOSE (.*)$", DOCKERFILE, re.MULTILINE).group(1)
    assert [int(port) for port in exposed.split()] == ports
    console = " ".join(SERVICES["console"]["command"])
    assert f"--url http://service:{ports[0]} --history-url http://history:{ports[1]}" in console
    assert f"http://service:{ports[0]};" in NGINX and f"http://console:{ports[2]};" in NGINX
    assert f"127.0.0.1:{ports[0]}/health/ready" in SERVICES["service"]["healthcheck"]["test"][-1]
    listened = re.search(r"listen (\d+);", NGINX).group(1)
    assert SERVICES["proxy"]["ports"][0].endswith(f":{listened}")
    services = objects("Service")
    assert services["conductor"]["spec"]["ports"][0]["port"] == ports[0]
    assert services["conductor-console"]["spec"]["ports"][0]["port"] == ports[2]
    opened = {
        c["name"]: c["ports"][0]["containerPort"]
        for d in objects("Deployment").values()
        for c in d["spec"]["template"]["spec"]["containers"]
    }
    assert opened == dict(zip(("conductor", "history", "console"), ports, strict=True))


def test_everything_runs_as_the_image_s_user_with_nothing_to_write_but_its_folders():
    uid = int(re.search(r"--uid (\d+)", DOCKERFILE).group(1))
    assert f"USER {uid}:{uid}" in DOCKERFILE
    ours = [s for s in SERVICES.values() if s["image"] == "conductor"]
    assert len(ours) == 6
    assert {s["user"] for s in ours} == {f"{uid}:{uid}"}
    assert all(s["read_only"] and s["cap_drop"] == ["ALL"] for s in ours)
    for deployment in objects("Deployment").values():
        pod = deployment["spec"]["template"]["spec"]
        assert pod["securityContext"]["runAsUser"] == uid and pod["securityContext"]["runAsNonRoot"]
        assert not pod["automountServiceAccountToken"]
        for container in pod["containers"]:
            assert container["securityContext"]["readOnlyRootFilesystem"]
            mounts = {m["mountPath"] for m in container["volumeMounts"]}
            assert {"/var/lib/conductor", "/tmp"} <= mounts
    assert "CONDUCTOR_STATE_DIR=/var/lib/conductor" in DOCKERFILE


def test_who_stops_it_waits_for_the_drain(compose_settings, kubernetes_settings):
    grace = SERVICES["service"]["stop_grace_period"]
    assert float(grace.removesuffix("s")) > compose_settings.limits.drain_s + 10
    pod = objects("Deployment")["conductor"]["spec"]["template"]["spec"]
    assert pod["terminationGracePeriodSeconds"] > kubernetes_settings.limits.drain_s + 10


def test_the_proxy_s_limits_fit_the_service_s(compose_settings):
    limits = compose_settings.limits
    size = re.search(r"client_max_body_size (\d+)m;", NGINX).group(1)
    assert int(size) << 20 == limits.body_bytes_max
    v1 = re.search(r"location /v1/ \{(.*?)\n        \}", NGINX, re.DOTALL).group(1)
    read_s = int(re.search(r"proxy_read_timeout (\d+)s;", v1).group(1))
    assert read_s > limits.first_byte_timeout_s and read_s > limits.idle_timeout_s
    assert "proxy_buffering off;" in v1
    for name in ("client_header_timeout", "client_body_timeout", "send_timeout"):
        assert re.search(rf"{name} \d+s;", NGINX), name


def test_no_location_forgets_who_the_client_is():
    """In nginx a location that sets one header inherits none of its server's."""
    texts = [NGINX, *(p.read_text() for p in (DOCKER / "nginx" / "backup").glob("*.conf"))]
    locations = [
        m for text in texts for m in re.findall(r"location [^{]*\{(.*?)\}", text, re.DOTALL)
    ]
    assert len(locations) >= 6
    for location in locations:
        if "proxy_set_header" in location:
            assert "proxy_set_header X-Forwarded-For $remote_addr;" in location
    assert NGINX.count("proxy_set_header X-Forwarded-For $remote_addr;") == 2


def test_only_the_proxy_is_believed_and_reachable(compose_settings):
    networks = SERVICES["proxy"]["networks"]
    address = ip_address(networks["inside"]["ipv4_address"])
    (trusted,) = map(ip_network, compose_settings.auth.trusted_proxies)
    assert address in trusted
    assert COMPOSE["networks"]["inside"]["ipam"]["config"] == [{"subnet": str(trusted)}]
    assert [name for name, service in SERVICES.items() if "ports" in service] == ["proxy"]


def test_the_engines_are_those_of_the_settings(compose_settings):
    engines = {name: s["command"] for name, s in SERVICES.items() if name.startswith("engine-")}
    assert [node.id for node in compose_settings.nodes] == sorted(engines)
    for node in compose_settings.nodes:
        argv = [part for flag in engines[node.id] for part in flag.split("=", 1)]
        found = parser().parse_args(argv)
        assert node.url == f"http://{found.advertise_host}:{found.port}"
        assert (found.name, found.role, found.block_size, found.profile, found.time_scale) == (
            (node.id, node.role.value, node.block_size, node.profile, node.speed)
        )
    backup = (DOCKER / "nginx" / "backup" / "server.conf").read_text()
    assert any(node.url in backup and node.role.value == "both" for node in compose_settings.nodes)


def test_kubernetes_finds_engines_by_a_headless_service(kubernetes_settings):
    (pool,) = kubernetes_settings.discovery
    service = objects("Service")[pool.dns]["spec"]
    assert service["clusterIP"] == "None"
    assert pool.port in [port["port"] for port in service["ports"]]


def test_secrets_are_asked_for_under_one_name():
    asked = {
        (v["valueFrom"]["secretKeyRef"]["name"], v["valueFrom"]["secretKeyRef"]["key"])
        for d in objects("Deployment").values()
        for c in d["spec"]["template"]["spec"]["containers"]
        for v in c.get("env", [])
    }
    assert asked == {("conductor", "database-url"), ("conductor", "admin-token")}
    text = (DOCKER / "README.md").read_text()
    assert all(f"--from-literal={key}=" in text for _, key in asked)


def test_a_disruption_leaves_one_and_selects_the_pods():
    budget = objects("PodDisruptionBudget")["conductor"]["spec"]
    deployment = objects("Deployment")["conductor"]["spec"]
    assert budget["minAvailable"] < deployment["replicas"]
    assert budget["selector"] == deployment["selector"]
    listed = yaml.safe_load((DOCKER / "kubernetes" / "kustomization.yaml").read_text())
    files = {p.name for p in (DOCKER / "kubernetes").glob("*.yaml")} - {"kustomization.yaml"}
    assert set(listed["resources"]) == files


def pins(path: Path) -> dict[str, str]:
    return dict(re.findall(r"^([A-Za-z0-9._-]+)==([^ ;\\]+)", path.read_text(), re.MULTILINE))


def test_the_image_has_the_locked_versions_and_what_the_product_needs():
    image, everything = pins(DOCKER / "requirements.lock"), pins(ROOT / "requirements.lock")
    assert image.items() <= everything.items()
    assert not {"pytest", "mypy", "ruff", "playwright"} & set(image)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = {re.split(r"[\[<>=;]", d)[0] for d in project["dependencies"]}
    assert wanted <= set(image)
    assert "--hash=" in (DOCKER / "requirements.lock").read_text()
    assert "--index-url" not in (DOCKER / "requirements.lock").read_text()


def test_every_package_is_copied_into_the_image():
    found = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    packages = {name.rstrip("*") for name in found["packages"]["find"]["include"]}
    steps = (DOCKER / "build_steps.sh").read_text()
    ignored = (ROOT / ".dockerignore").read_text()
    for package in packages:
        assert re.search(rf"^COPY {package} {package}$", DOCKERFILE, re.MULTILINE)
        assert f"!{package}\n" in ignored
        assert re.search(rf"\bcp -R .*\b{package}\b", steps)


@pytest.mark.skipif(shutil.which("nginx") is None, reason="no nginx on this machine")
@pytest.mark.parametrize("backup", [False, True])
def test_nginx_takes_its_configuration(tmp_path, backup):
    folder = DOCKER / "nginx" / "backup" if backup else tmp_path / "none"
    text = NGINX.replace("/etc/nginx/backup", str(folder)).replace(" /tmp/", f" {tmp_path}/")
    (tmp_path / "nginx.conf").write_text(text)
    argv = ["nginx", "-t", "-c", str(tmp_path / "nginx.conf")]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
