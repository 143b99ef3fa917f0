"""install.sh of the kit, on a fake file system and with fake commands."""

import fcntl
import re
import shutil
import subprocess

import pytest
from helpers import executable

from fl_app.field.make import add_helper, new_kit

GIB = 2**20  # in KiB, the unit of /proc/meminfo and df


class Machine:
    """A board as install.sh sees it.

    Attributes:
        does: shell code of each command.
    """

    def __init__(self, folder):
        self.root, self.bin = folder / "root", folder / "bin"
        self.calls, self.running = folder / "calls", folder / "running"
        self.path = ""  # prefix of PATH
        self.running.mkdir()
        for path in ("etc/systemd/system", "proc/net", "run/systemd/system", "opt"):
            (self.root / path).mkdir(parents=True)
        self.does = {
            "id": '[ "$1" = -u ] && echo 0',
            "uname": "echo aarch64",
            "getconf": '[ "$1" = LONG_BIT ] && echo 64 || echo 4096',
            "df": f"echo; echo x x x {30 * GIB}",
            "date": f'exec {shutil.which("date")} "$@"',
            "python3": '[ "$1" != -c ] || exit 0; '
            '[ "$1" != --version ] || exec echo Python 3.11.2; '
            'mkdir -p "$3/bin"; : >"$3/bin/python"; chmod +x "$3/bin/python"',
            "systemctl": f"cd {self.running}; for last; do :; done; case $* in "
            '*is-active*) [ -f "$last" ] ;; start* | restart*) shift; touch "$@" ;; '
            'stop* | disable*) rm -f "$last" ;; esac',
            "sleep": ":",
        }
        for name in ("useradd", "userdel", "chown", "apt-get", "dpkg", "systemd-run"):
            self.does[name] = ":"
        for minor in (11, 12, 13, 14):  # this machine may have them
            self.does[f"python3.{minor}"] = "exit 127"
        self.write("etc/os-release", "ID=debian\n")
        self.write("proc/meminfo", f"MemTotal: {4 * GIB} kB\n")
        self.write("proc/net/tcp", "")

    def write(self, path, text):
        (self.root / path).write_text(text)

    def python_at(self, path):
        """Put a Python at `path`; it precedes the others unless it is in /usr/bin."""
        executable(self.root / path, "")
        if not path.startswith("usr/"):
            self.path = f"{(self.root / path).parent}:"

    def run(self, folder, *arguments):
        for name, action in self.does.items():
            executable(self.bin / name, f'echo "{name} $*" >>"{self.calls}"\n{action}')
        self.calls.write_text("")
        return subprocess.run(
            ["sh", folder / "install.sh", *arguments],
            env={"PATH": f"{self.path}{self.bin}:/usr/bin:/bin", "DESTDIR": str(self.root)},
            text=True,
            capture_output=True,
        )

    def called(self, pattern):
        return re.findall(f"^{pattern}.*$", self.calls.read_text(), re.MULTILINE)

    @property
    def home(self):
        return self.root / "opt/fl-app/node"


@pytest.fixture
def machine(tmp_path):
    return Machine(tmp_path)


def make_kit(folder, wheel="a wheel"):
    """A kit with a fake wheel, which no test installs."""
    file = folder / "fl_app-0.1.0-py3-none-any.whl"
    file.write_text(wheel)
    new_kit(folder / "out", nodes=2, hosts=["server.lan"], wheel=file)
    for name in ("server", "node-0", "node-1"):
        (folder / "out" / name / "packages.py").write_text("no installer is run")
    return folder / "out"


@pytest.fixture
def kit(tmp_path):
    return make_kit(tmp_path)


OLD = "case $2 in *exit*) exit 1 ;; *) echo 3.9.2 ;; esac"
YEARS_AGO = f'exec {shutil.which("date")} -d 2020-01-01 "$@"'  # as on a board without a clock
OTHER = "0: 00000000:2386 00000000:0000 01 00000000"  # a connection, which is no listener


@pytest.mark.parametrize(
    ("spoil", "error"),
    [
        ({"uname": "echo riscv64"}, r"no packages of torch for this processor \(riscv64\)"),
        ({"getconf": "echo 32"}, r"32-bit system \(aarch64\), and torch and Flower need 64 bits"),
        ({"etc/os-release": "ID=alpine\n"}, r"none of Debian's family \(alpine \)"),
        ({"run/systemd": None}, "systemd does not run here: use Docker, or"),
        ({"python3": OLD}, r"Python 3.9.2 is too old, 3.11 or newer is needed"),
        ({"home/pi/bin/python3": ""}, r"the service's user cannot read .*/home/pi/bin/python3"),
        ({"proc/meminfo": f"MemTotal: {GIB // 2} kB\n"}, "has 512 MiB of memory, and torch needs"),
        ({"df": f"echo; echo x x x {GIB}"}, "opt has 1024 MiB of free disk space, and the"),
        ({"date": YEARS_AGO}, "clock says 2020-01-01 00:00, which is before this kit was made"),
        (
            {"proc/net/tcp": f"{OTHER}\n1: 0100007F:2386 00000000:0000 0A 00000000\n"},
            "another program listens on port 9094",
        ),
    ],
)
def test_an_unsuitable_system_is_reported_in_one_line_and_left_alone(machine, kit, spoil, error):
    ((subject, value),) = spoil.items()
    if value is None:
        shutil.rmtree(machine.root / subject)
    elif value == "":
        machine.python_at(subject)
    elif "/" in subject:
        machine.write(subject, value)
    else:
        machine.does[subject] = value
    result = machine.run(kit / "node-0")
    assert result.returncode == 1
    first, last = result.stderr.splitlines()
    assert re.search(error, first)
    assert last == "error: nothing was changed: 1 found (see above)"
    assert not (machine.root / "opt/fl-app").exists()
    assert not machine.called("(useradd|apt-get|systemctl (enable|restart))")


def test_permissions_and_options(machine, kit):
    machine.does["id"] = "echo 1000"
    result = machine.run(kit / "node-0", "--check")
    assert (result.returncode, result.stdout) == (0, "The system has what is needed\n")
    for options, status, error in (
        ((), 1, "only root can install a service: sudo sh install.sh"),
        (("--uninstall",), 1, "only root can remove a service: sudo sh install.sh"),
        (("--fast",), 2, "install.sh has no option --fast"),
        (("--torch", "rocm"), 1, "--torch rocm must be auto, cpu, cuda or none"),
        (("--torch", "none"), 1, "--torch none is for the helper: a node computes with torch"),
        (("--purge",), 1, "--purge goes with --uninstall"),
    ):
        result = machine.run(kit / "node-0", *options)
        assert (result.returncode, error in result.stderr) == (status, True)
    assert not (machine.root / "opt/fl-app").exists()
    assert "--uninstall" in machine.run(kit / "node-0", "--help").stdout
    (kit / "node-0" / "node.env").unlink()
    assert "it is no folder of the kit" in machine.run(kit / "node-0").stderr


def test_two_installations_do_not_run_at_once(machine, kit):
    (machine.root / "run/lock").mkdir()
    with (machine.root / "run/lock/fl-app-install").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        result = machine.run(kit / "node-0")
    assert (result.returncode, result.stderr) == (1, "error: another install.sh is running\n")
    assert not (machine.root / "opt/fl-app").exists()


def test_a_folder_becomes_a_service(machine, kit):
    result = machine.run(kit / "node-0")
    assert (result.returncode, result.stderr) == (0, "")
    home = machine.home
    assert (home / "node.key").read_bytes() == (kit / "node-0" / "node.key").read_bytes()
    assert (machine.root / "etc/systemd/system/fl-supernode.service").exists()
    (installation,) = machine.called("python3 .*packages.py")
    assert installation.endswith(
        f"--venv {machine.root}/opt/fl-app/.venv --torch auto "
        f"--constraints {home}/constraints.txt fl-app @ file://{home}/fl_app-0.1.0-py3-none-any.whl"
    )
    (doctor,) = machine.called("systemd-run")
    for word in (
        *("--property=User=fl-app", "--property=ProtectSystem=strict", "--property=PrivateTmp=yes"),
        *("--property=EnvironmentFile=/opt/fl-app/node/node.env", "fl_app.field doctor"),
    ):
        assert word in doctor
    assert machine.called("systemctl enable --quiet fl-supernode")
    order = [line.split()[0] for line in machine.calls.read_text().splitlines()]
    assert order.index("useradd") < order.index("chown") < order.index("systemd-run")
    # The server may not exist yet.
    machine.does["systemd-run"] = "echo 'WRONG SuperLink'; exit 1"
    result = machine.run(kit / "node-0")
    assert (result.returncode, "WRONG SuperLink" in result.stdout) == (3, True)
    assert "found something wrong" in result.stdout
    assert machine.called("systemctl restart fl-supernode")


def test_the_servers_folder_brings_caddy_from_the_systems_packages(machine, kit):
    """Caddy's default page on port 80 is disabled; an installed Caddy is left unchanged."""
    machine.python_at("usr/bin/caddy")  # any command will do
    assert machine.run(kit / "server").returncode == 0
    assert "fl-app[server] @ file://" in machine.called("python3 .*packages.py")[0]
    units = sorted(path.name for path in (machine.root / "etc/systemd/system").iterdir())
    assert units == ["fl-caddy.service", "fl-run.service", "fl-superlink.service"]
    assert machine.called("systemctl enable") == [
        "systemctl enable --quiet fl-superlink",
        "systemctl enable --quiet fl-caddy",
    ]
    assert not machine.called("apt-get|systemctl disable")
    (machine.root / "usr/bin/caddy").unlink()
    assert machine.run(kit / "server").returncode == 0
    assert machine.called("apt-get .* install --no-install-recommends caddy")
    assert machine.called("systemctl disable --now --quiet caddy")
    machine.does["apt-get"] = "exit 100"
    assert "caddy cannot be installed" in machine.run(kit / "server").stderr
    for port, number in (("1FA4", 8100), ("1FA3", 8099)):  # ports of Caddy and of the SuperLink
        machine.write("proc/net/tcp", f"1: 0100007F:{port} 00000000:0000 0A 00000000\n")
        (machine.running / "fl-superlink").unlink(missing_ok=True)
        result = machine.run(kit / "server", "--check")
        assert f"another program listens on port {number}" in result.stderr


def test_the_helpers_folder_installs_no_torch_and_keeps_its_record(machine, kit):
    folder = add_helper(kit, ["helper.lan"])
    (folder / "packages.py").write_text("no installer is run")
    result = machine.run(folder)
    assert (result.returncode, result.stderr) == (0, "")
    assert machine.called("systemctl enable") == ["systemctl enable --quiet fl-helper"]
    (installation,) = machine.called("python3 .*packages.py")
    assert "--torch none " in installation
    assert " fl-app @ file://" in installation
    home = machine.root / "opt/fl-app/helper"
    record = (home / "helper.db").read_bytes() + b"seeds"
    (home / "helper.db").write_bytes(record)
    assert machine.run(folder).returncode == 0  # an older copy does not replace the record
    assert (home / "helper.db").read_bytes() == record
    (folder / "helper.key").write_text("of another kit")
    assert "belongs to another device or kit" in machine.run(folder).stderr


def test_python_comes_from_the_systems_packages(machine, kit):
    marker = machine.root / "have-venv"
    machine.does["apt-get"] = f'[ "$4" = update ] || : >{marker}'
    script = machine.does["python3"]
    machine.does["python3"] = f"case $2 in *ensurepip*) [ -f {marker} ]; exit ;; esac; {script}"
    assert machine.run(kit / "node-0").returncode == 0
    assert machine.called("apt-get .* install --no-install-recommends python3-venv")
    marker.unlink()
    machine.does["apt-get"] = "exit 100"
    result = machine.run(kit / "node-0")
    assert result.returncode == 1
    assert "connect this machine to a network, and run this again" in result.stderr


def test_run_again_it_updates_and_keeps_settings_keys_and_state(machine, kit, tmp_path):
    assert machine.run(kit / "node-0").returncode == 0
    home = machine.home
    (home / "state").mkdir()
    (home / "state" / "client").write_text("what a client remembers")
    settings = (home / "node.env").read_text().replace('DATA=""', 'DATA="/srv/x"')
    (home / "node.env").write_text(settings)
    before = (home / "node.key").read_bytes()
    result = machine.run(kit / "node-0")
    assert result.returncode == 0
    assert "up to date" in result.stdout
    assert "settings in" in result.stdout
    assert not machine.called("python3 .*packages.py")
    (kit / "node-0" / "fl_app-0.1.0-py3-none-any.whl").rename(
        kit / "node-0" / "fl_app-0.2.0-py3-none-any.whl"
    )
    (kit / "node-0" / "start.sh").write_text("newer")
    result = machine.run(kit / "node-0")
    assert result.returncode == 0
    assert (home / "start.sh").read_text() == "newer"
    assert [path.name for path in home.glob("*.whl")] == ["fl_app-0.2.0-py3-none-any.whl"]
    assert (home / "node.env").read_text() == settings
    assert (home / "node.key").read_bytes() == before
    assert (home / "state" / "client").read_text() == "what a client remembers"
    assert machine.run(home).returncode == 0, "also from where it is installed"


@pytest.mark.parametrize("signal", ["failure", "KILL"])
def test_an_interrupted_installation_is_completed_by_the_next(machine, kit, signal):
    script = machine.does["python3"]
    end = "exit 1" if signal == "failure" else f"kill -{signal} $PPID; exit 1"
    machine.does["python3"] = f'case $1 in */packages.py) mkdir -p "$3"; {end} ;; esac; {script}'
    result = machine.run(kit / "node-0")
    assert result.returncode != 0
    assert not machine.called("systemctl enable")
    if signal == "failure":
        assert "the environment is not complete: mend" in result.stderr
    machine.does["python3"] = script
    result = machine.run(kit / "node-0")
    assert (result.returncode, result.stderr) == (0, "")
    assert machine.called("python3 .*packages.py")


@pytest.mark.parametrize("other", ["node-1", "another kit"])
def test_a_second_kit_does_not_replace_the_first(machine, tmp_path, other):
    (tmp_path / "second").mkdir()
    new_kit(tmp_path / "out", nodes=2, hosts=["server.lan"])
    first, second = tmp_path / "out" / "node-0", tmp_path / "out" / "node-1"
    if other != "node-1":
        new_kit(tmp_path / "second/out", nodes=1, hosts=["server.lan"])
        second = tmp_path / "second/out/node-0"
        settings = re.sub('MADE="[0-9]*"', 'MADE="1"', (second / "node.env").read_text())
        (second / "node.env").write_text(settings)
    for folder in (first, second):
        (folder / "fl_app-0.1.0-py3-none-any.whl").write_text("a wheel")
    assert machine.run(first).returncode == 0
    key = [path.read_bytes() for path in machine.home.glob("node.key")]
    result = machine.run(second)
    assert result.returncode == 1
    assert "belongs to another device or kit, whose keys would be lost" in result.stderr
    assert [path.read_bytes() for path in machine.home.glob("node.key")] == key
    assert machine.run(machine.home, "--uninstall", "--purge").returncode == 0
    assert machine.run(second).returncode == 0


def test_uninstalling_keeps_keys_state_and_the_other_role_by_default(machine, kit):
    assert machine.run(kit / "server").returncode == 0
    assert machine.run(kit / "node-0").returncode == 0
    assert not machine.called("python3 .*packages.py"), "the server's has all that a node needs"
    assert machine.run(kit / "server", "--uninstall", "--purge").returncode == 0
    assert (machine.root / "opt/fl-app/.venv").exists()
    assert not machine.called("userdel")
    assert machine.run(machine.home, "--uninstall").returncode == 0
    assert machine.called("systemctl disable --now --quiet fl-supernode")
    assert not list((machine.root / "etc/systemd/system").iterdir())
    assert not (machine.root / "opt/fl-app/.venv").exists()
    assert (machine.home / "node.key").exists()
    assert machine.run(kit / "node-0").returncode == 0
    assert machine.run(kit / "node-0", "--uninstall", "--purge").returncode == 0
    assert not (machine.root / "opt/fl-app").exists()
    assert machine.called("userdel fl-app")
