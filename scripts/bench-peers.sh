#!/usr/bin/env bash
# Installs what `lab bench` compares us with: the peer smg 1.13.0 (PyPI, a venv of its own under .cache/) and
# HAProxy (Debian). Does nothing for what is already there. Run it once; the bench itself never downloads.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

peer_version=1.13.0
venv=.cache/bench-venv

if [[ "$("$venv/bin/python" -c 'from importlib.metadata import version; print(version("smg"))' 2>/dev/null || true)" == "$peer_version" ]]; then
    echo "peer: smg $peer_version is in $venv"
else
    python="${PYTHON:-python3}"
    "$python" -c 'import sys; sys.exit(sys.version_info < (3, 9))' || {
        echo "error: smg $peer_version needs Python 3.9 or newer; point PYTHON at one" >&2
        exit 1
    }
    "$python" -m venv --clear "$venv"
    "$venv/bin/pip" install --quiet --disable-pip-version-check "smg==$peer_version"
    echo "peer: installed smg $peer_version into $venv"
fi

if command -v haproxy >/dev/null || [[ -x /usr/sbin/haproxy ]]; then
    echo "haproxy: $(PATH="$PATH:/usr/sbin" haproxy -v | head -n 1)"
elif command -v apt-get >/dev/null; then
    as_root=()
    [[ $EUID -eq 0 ]] || as_root=(sudo)
    # A running service would take CPU beside the measurement: stop the one the package starts.
    "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends haproxy
    "${as_root[@]}" systemctl disable --now haproxy 2>/dev/null || true
else
    echo "error: no haproxy and no apt-get: install HAProxy by hand (the bench looks for it in PATH and /usr/sbin)" >&2
    exit 1
fi
