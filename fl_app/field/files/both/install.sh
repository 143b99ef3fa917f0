#!/bin/sh
# Installs this folder of the kit on its machine, as a service that starts with the system:
#     sudo sh install.sh          (`sh install.sh --help` lists the options)
# It may be interrupted and run again at any time: settings, keys and state are never replaced.
set -eu

usage() {
    cat <<'END'
sudo sh install.sh [OPTION...]    in a kit's folder: installs it in /opt/fl-app, as a service

  --torch auto|cpu|cuda|none  build of torch: auto takes the one for NVIDIA's GPUs where there is one,
                              and none is for the helper, which trains nothing (auto, for the helper
                              none; when run again: as before)
  --check                     check the system, and change nothing; needs no root
  --uninstall                 remove service and environment; settings, keys and state stay
  --purge                     with --uninstall: remove these, too
  --help                      show this

Run again, it updates: it takes the folder's programs, and keeps settings, keys and state.
Exit status: 0 installed; 1 not installed; 2 an unknown option; 3 installed, but doctor found faults.
END
}

say() { printf '%s\n' "$*"; }
die() {
    printf 'error: %s\n' "$*" >&2
    exit 1
}

# Memory in MiB, and disk in MiB for the environment, Flower's files and those of runs.
MEMORY=800 MEMORY_WITHOUT_TORCH=350
DISK=2500 DISK_CUDA=9000 DISK_WITHOUT_TORCH=1500 DISK_UPDATE=300

root=${DESTDIR-} # for tests: a folder in place of /
opt=$root/opt/fl-app
venv=$opt/.venv
units=$root/etc/systemd/system
here=$(cd "$(dirname "$0")" && pwd -P)
torch='' only_check=no uninstall=no purge=no

while [ $# -gt 0 ]; do
    case $1 in
        --torch=*) torch=${1#*=} ;;
        --torch)
            torch=${2-}
            [ $# -lt 2 ] || shift
            ;;
        --check) only_check=yes ;;
        --uninstall) uninstall=yes ;;
        --purge) purge=yes ;;
        --help | -h)
            usage
            exit 0
            ;;
        *)
            printf 'error: install.sh has no option %s (--help lists them)\n' "$1" >&2
            exit 2
            ;;
    esac
    shift
done

if [ -f "$here/server.env" ]; then
    role=server service=fl-superlink services='fl-superlink fl-caddy fl-run'
elif [ -f "$here/node.env" ]; then
    role=node service=fl-supernode services=fl-supernode
elif [ -f "$here/helper.env" ]; then
    role=helper service=fl-helper services=fl-helper
else
    die "$here holds no node.env, server.env or helper.env: it is no folder of the kit"
fi
home=$opt/$role

# -- the system -----------------------------------------------------------------------------------

problems=0
problem() {
    printf 'error: %s\n' "$*" >&2
    problems=$((problems + 1))
}

# The value of a setting, of the installed folder or else of this one.
setting() {
    file=$here/$role.env
    [ ! -f "$home/$role.env" ] || file=$home/$role.env
    sed -n "s/^$1=//p" "$file" | tail -n 1 | sed "s/^\(['\"]\)\(.*\)\1\$/\2/"
}

# The first Python that is new enough, and that the service's user can read.
find_python() {
    unreadable=''
    for python in python3 python3.14 python3.13 python3.12 python3.11 "$root/usr/bin/python3"; do
        python=$(command -v "$python") || continue
        "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || continue
        case $(readlink -f "$python") in
            "$root"/root/* | "$root"/home/*) unreadable=$python ;;
            *) return 0 ;;
        esac
    done
    python=''
    return 1
}

# What is wrong with the Pythons of this system, after find_python has found none.
about_python() {
    if [ -n "$unreadable" ]; then
        say "the service's user cannot read $unreadable, and no other Python 3.11 or newer is here:" \
            "sudo apt-get install python3"
    else
        found=$(python3 -c 'import sys; print("%d.%d.%d" % sys.version_info[:3])' 2>/dev/null) || found=''
        say "Python ${found:+$found is too old, }3.11 or newer is needed: take Debian 12, Ubuntu 24.04, a Raspberry" \
            "Pi OS of October 2023, or newer"
    fi
}

# Whether a program listens on a port, as the kernel lists them: state 0A is LISTEN.
listens() {
    pattern=$(printf ':%04X [0-9A-F]*:0000 0A ' "$1")
    grep -q -s "$pattern" "$root/proc/net/tcp" "$root/proc/net/tcp6"
}

active() { systemctl --quiet is-active "$1" 2>/dev/null; }

environment_there() { [ -f "$venv/.complete-$role" ]; }

check_system() {
    [ "$only_check" = yes ] || [ "$(id -u)" = 0 ] ||
        die "only root can install a service: sudo sh install.sh"

    machine=$(uname -m)
    if [ "$(getconf LONG_BIT)" != 64 ]; then
        problem "this is a 32-bit system ($machine), and torch and Flower need 64 bits:" \
            "install a 64-bit Raspberry Pi OS or Debian"
    else
        case $machine in
            x86_64 | aarch64) ;;
            *) problem "there are no packages of torch for this processor ($machine): x86_64 and aarch64" ;;
        esac
    fi

    # shellcheck source=/dev/null
    like=$(. "$root/etc/os-release" 2>/dev/null && echo "${ID-} ${ID_LIKE-}") || like=unknown
    case " $like " in
        *' debian '*) ;;
        *) problem "this system is none of Debian's family ($like): docs/edge.md has the long way" ;;
    esac
    [ -d "$root/run/systemd/system" ] ||
        problem "systemd does not run here: use Docker, or sh start.sh (docs/edge.md)"

    # Where there is no Python at all, it is installed.
    if ! find_python && command -v python3 >/dev/null; then problem "$(about_python)"; fi

    memory=$(awk '/^MemTotal:/ { print int($2 / 1024) }' "$root/proc/meminfo")
    if [ "$torch" = none ]; then
        [ "$memory" -ge "$MEMORY_WITHOUT_TORCH" ] ||
            problem "this machine has $memory MiB of memory, and the helper needs $MEMORY_WITHOUT_TORCH"
    elif [ "$memory" -lt "$MEMORY" ]; then
        problem "this machine has $memory MiB of memory, and torch needs $MEMORY"
    fi

    folder=$opt
    while [ ! -d "$folder" ]; do folder=$(dirname "$folder"); done
    free=$(df -Pk "$folder" | awk 'NR == 2 { print int($4 / 1024) }')
    case $torch in
        none) needed=$DISK_WITHOUT_TORCH ;;
        cuda) needed=$DISK_CUDA ;;
        *) needed=$DISK ;;
    esac
    ! environment_there || needed=$DISK_UPDATE
    [ "$free" -ge "$needed" ] ||
        problem "$folder has $free MiB of free disk space, and the installation needs $needed"

    made=$(sed -n 's/^MADE="\{0,1\}\([0-9]*\)"\{0,1\}$/\1/p' "$here/$role.env")
    [ "$(date +%s)" -ge "${made:-0}" ] ||
        problem "the clock says $(date '+%Y-%m-%d %H:%M'), which is before this kit was made: no certificate" \
            "would be valid: sudo timedatectl set-ntp true, or sudo date -s 'YYYY-MM-DD HH:MM'"

    ports=$(setting PORT)
    [ "$role" != server ] || ports="$ports $(setting SUPERLINK | sed 's/.*://')"
    for port in $ports; do
        if listens "$port" && ! active "$service"; then
            problem "another program listens on port $port: \`ss -ltnp\` names it; end it, or change the port in $role.env"
        fi
    done

    page=$(getconf PAGESIZE)
    [ "$page" = 4096 ] ||
        say "note: this kernel has pages of $((page / 1024)) KiB: if doctor says that a library does not load, see docs/edge-operations.md"
    [ "$problems" = 0 ] || die "nothing was changed: $problems found (see above)"
}

# -- the installation -----------------------------------------------------------------------------

# venv and ensurepip are packages of their own on Debian.
install_python() {
    if find_python && "$python" -c 'import ensurepip, venv' 2>/dev/null; then return; fi
    package=$(basename "${python:-python3}")-venv
    say "Installing $package ..."
    export DEBIAN_FRONTEND=noninteractive
    dpkg --configure -a # in case that an earlier installation was interrupted
    apt-get -q -o DPkg::Lock::Timeout=300 update || :
    apt-get -q -y -o DPkg::Lock::Timeout=300 install --no-install-recommends "$package" ||
        die "$package cannot be installed (see above): connect this machine to a network, and run this again"
    find_python || die "$(about_python)"
}

# What stands before the SuperLink. Debian's package also starts a page on port 80, which is not wanted.
install_caddy() {
    [ "$role" = server ] && [ ! -x "$root/usr/bin/caddy" ] || return 0
    say "Installing caddy ..."
    apt-get -q -o DPkg::Lock::Timeout=300 update || :
    DEBIAN_FRONTEND=noninteractive apt-get -q -y -o DPkg::Lock::Timeout=300 install --no-install-recommends caddy ||
        die "caddy cannot be installed (see above): connect this machine to a network, and run this again"
    systemctl disable --now --quiet caddy || :
}

# Whether the installed folder is an earlier copy of this one, and no other device's or kit's.
check_same() {
    for file in ca.crt node.key server.key helper.key; do
        if [ -f "$here/$file" ] || [ -f "$home/$file" ]; then
            cmp -s "$here/$file" "$home/$file" || return 1
        fi
    done
    there=$(sed -n '/^MADE=/p' "$home/$role.env")
    [ -z "$there" ] || [ "$there" = "$(sed -n '/^MADE=/p' "$here/$role.env")" ]
}

# Copies the folder to its place; of a later copy only what does not belong to the device.
place() {
    id fl-app >/dev/null 2>&1 ||
        useradd --system --home-dir /opt/fl-app --no-create-home --shell /usr/sbin/nologin fl-app
    mkdir -p "$opt"
    if [ "$here" = "$home" ]; then
        :
    elif [ -d "$home" ]; then
        rm -f "$home"/fl_app-*.whl
        for file in "$here"/*.sh "$here"/*.py "$here"/*.service "$here"/*.yaml "$here"/*.whl \
            "$here"/README.md "$here"/constraints.txt "$here"/Caddyfile; do
            [ ! -f "$file" ] || cp -p "$file" "$home/"
        done
        cmp -s "$here/$role.env" "$home/$role.env" ||
            say "note: the settings in $home/$role.env stay as they are; $here/$role.env has others"
    else
        rm -rf "$home.new"
        cp -Rp "$here" "$home.new"
        mv "$home.new" "$home"
    fi
    chown -R fl-app: "$home"
    chmod 700 "$home"
}

stopped=''
# A service runs on what it has loaded: it must not find half of another version.
stop_services() {
    for name in fl-run fl-supernode fl-caddy fl-superlink fl-helper; do
        if active "$name"; then
            systemctl stop "$name"
            stopped="$name $stopped"
        fi
    done
}
start_again() {
    # shellcheck disable=SC2086 # several names
    [ -z "$stopped" ] || systemctl start $stopped
    stopped=''
}

make_environment() {
    set -- "$home"/fl_app-*.whl
    [ $# = 1 ] && [ -f "$1" ] || die "$home must hold one wheel of this project: copy the kit's folder again"
    requirement="fl-app @ file://$1"
    [ "$role" != server ] || requirement="fl-app[server] @ file://$1"
    wanted=$(cat "$1" "$home/constraints.txt" "$home/packages.py" | cksum)
    wanted="$wanted $torch $("$python" --version)"
    for other in "$role" server; do # what the server needs suffices for the others
        if [ "$(cat "$venv/.complete-$other" 2>/dev/null)" = "$wanted" ]; then
            say "The environment $venv is up to date"
            printf '%s' "$wanted" >"$venv/.complete-$role"
            return
        fi
    done
    say "Installing into $venv (a board takes minutes) ..."
    stop_services
    rm -f "$venv/.complete-$role"
    # Downloads outlive an interruption: the next attempt goes on from them.
    UV_CACHE_DIR=$opt/.downloads "$python" "$home/packages.py" --venv "$venv" --torch "$torch" \
        --constraints "$home/constraints.txt" "$requirement" ||
        die "the environment is not complete: mend what is said above, and run this again"
    rm -rf "$opt/.downloads"
    printf '%s' "$torch" >"$opt/.torch"
    printf '%s' "$wanted" >"$venv/.complete-$role"
}

# Runs doctor as the service runs: as its user, and with its view of the files.
doctor() {
    {
        sed -n -E 's/^(User|EnvironmentFile|NoNewPrivileges|Private|Protect|ReadWritePaths)[A-Za-z]*=/--property=&/p' \
            "$units/$service.service"
        printf '%s\n' --setenv=COLUMNS=120 --setenv=FLWR_HOME="$home/flower" --setenv=XDG_CACHE_HOME="$home/cache" \
            -- "$venv/bin/python" -m fl_app.field doctor "$home"
    } | xargs systemd-run --quiet --wait --pipe --collect
}

install() {
    cd / # for Python looks for modules where it is started
    mkdir -p "$root/run/lock"
    exec 9>"$root/run/lock/fl-app-install"
    flock -n 9 || die "another install.sh is running"
    trap start_again EXIT
    trap 'exit 1' HUP INT TERM
    [ ! -d "$home" ] || [ "$here" = "$home" ] || check_same ||
        die "$home belongs to another device or kit, whose keys would be lost: to replace it, first" \
            "sudo sh $home/install.sh --uninstall --purge"
    install_python
    install_caddy
    place
    make_environment
    for name in $services; do cp "$home/$name.service" "$units/"; done
    systemctl daemon-reload
    for name in $services; do
        [ "$name" != fl-run ] || continue # which is not started before somebody wants it
        systemctl enable --quiet "$name"
        systemctl restart "$name"
    done
    start_again
    say "$service is started; doctor waits for it ..."
    tries=0
    until "$venv/bin/python" -m fl_app.field healthy "$home" || [ "$tries" = 20 ]; do
        tries=$((tries + 1))
        sleep 2
    done
    status=0
    doctor || status=3
    say "$service starts with this system. Its log: journalctl -fu $service"
    [ "$here" = "$home" ] || say "Settings, keys and state: $home. This folder is not needed any more."
    [ "$status" = 0 ] || say "doctor found something wrong (see above). The service goes on trying."
    exit "$status"
}

remove() {
    for name in $services; do
        systemctl disable --now --quiet "$name" 2>/dev/null || :
        rm -f "$units/$name.service"
    done
    systemctl daemon-reload
    rm -f "$venv/.complete-$role"
    if ! ls "$venv"/.complete-* >/dev/null 2>&1; then rm -rf "$venv" "$opt/.downloads" "$opt/.torch"; fi
    if [ "$purge" = yes ]; then
        rm -rf "$home" "$home.new"
        # The other role's folder, or a clone, may be there as well.
        if rmdir "$opt" 2>/dev/null; then userdel fl-app; fi
        say "$service, its environment, settings, keys and state are removed"
    else
        say "$service and its environment are removed. $home has its settings, keys and state still"
    fi
}

main() {
    usual=auto
    [ "$role" != helper ] || usual=none # it trains nothing
    if [ -z "$torch" ]; then torch=$(cat "$opt/.torch" 2>/dev/null || echo "$usual"); fi
    case $torch in
        auto | cpu | cuda | none) ;;
        *) die "--torch $torch must be auto, cpu, cuda or none" ;;
    esac
    [ "$torch" != none ] || [ "$role" = helper ] || die "--torch none is for the helper: a $role computes with torch"
    if [ "$uninstall" = yes ]; then
        [ "$(id -u)" = 0 ] || die "only root can remove a service: sudo sh install.sh --uninstall"
        remove
        return
    fi
    [ "$purge" = no ] || die "--purge goes with --uninstall"
    check_system
    if [ "$only_check" = yes ]; then
        say "The system has what is needed"
    else
        install
    fi
}

main
