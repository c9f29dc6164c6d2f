# Sourced by the scripts beside it: makes the checkout's own environment, .venv, and puts it on the PATH.
#
#   use_environment runtime   the package alone
#   use_environment dev       the package and the tools of development, at the versions of constraints.txt
#
# A stamp says what was installed, and from where: while nothing of it has changed, nothing runs and no network is used.

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
VENV=$ROOT/.venv

say() { printf '== %s\n' "$*"; }

die() {
    printf '%s: %s\n' "scripts/$(basename "$0")" "$*" >&2
    exit 1
}

is_python() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 10))' >/dev/null 2>&1; }

# $PYTHON if it is set, else the first python on the PATH that is new enough.
find_python() {
    local candidate
    for candidate in ${PYTHON:-python3 python3.12 python3.11 python3.10 python3.13 python}; do
        if is_python "$candidate"; then
            printf '%s\n' "$candidate"
            return
        fi
    done
    die "needs Python 3.10 or newer; tried: ${PYTHON:-python3, python3.10 to python3.13, python}." \
        "Set PYTHON to one: PYTHON=/path/to/python3 scripts/$(basename "$0")"
}

make_venv() {
    local python
    python=$(find_python) || exit 1
    say "making .venv with $("$python" --version)"
    rm -rf "$VENV"
    if ! "$python" -m venv "$VENV"; then
        rm -rf "$VENV"
        die "$python -m venv failed; Debian and Ubuntu have it in the package python3-venv"
    fi
}

pip_install() {
    if ! "$VENV/bin/python" -m pip install --quiet --disable-pip-version-check \
        --constraint "$ROOT/scripts/constraints.txt" "$@" >"$VENV/install.log" 2>&1; then
        cat "$VENV/install.log" >&2
        die "pip could not install the packages (above); the first run, and one after a change of versions, needs a network"
    fi
}

use_environment() {
    local kind=$1 extra='' stamp
    [ "$kind" = dev ] && extra='[dev]'
    # The path counts: an editable install points at it, and .venv may have moved along with the checkout.
    stamp=$({ echo "$ROOT"; cat "$ROOT/pyproject.toml" "$ROOT/scripts/constraints.txt"; } | cksum)
    is_python "$VENV/bin/python" || make_venv
    if [ "$(cat "$VENV/.stamp-$kind" 2>/dev/null)" != "$stamp" ]; then
        say "installing atc-py$extra into .venv"
        # setuptools first, at its pinned version: the build then needs no environment of its own.
        pip_install setuptools
        (cd "$ROOT" && pip_install --no-build-isolation --editable ".$extra")
        printf '%s\n' "$stamp" >"$VENV/.stamp-$kind"
        [ "$kind" = runtime ] || printf '%s\n' "$stamp" >"$VENV/.stamp-runtime"
    fi
    export PATH="$VENV/bin:$PATH" VIRTUAL_ENV="$VENV"
    unset PYTHONHOME
}
