#!/bin/sh
# Print the path of the interpreter that the development environment is made from.
#
#   find_python.sh            the newest supported Python of this machine, $PYTHON where that is set
#   find_python.sh 3.11       some Python 3.11, for the run against the oldest supported versions
#
# The newest, because the Python decides the JAX: Python 3.11 ends at jax 0.10, whose bfloat16 on a CPU takes
# more than twice the time of jax 0.12. So a newer interpreter is preferred to the `python3` of the PATH, pyenv's
# included. Each candidate is run before it is believed: a pyenv shim exists for every version that was ever
# installed and fails when the version is not selected; Debian's python3 may lack ensurepip.
set -eu

# What the set-up needs: a released CPython with the GIL (the only builds that all wheels exist for), venv, pip, TLS.
probe='
import sys, sysconfig
import ensurepip, ssl, venv
if sys.version_info.releaselevel != "final" or sysconfig.get_config_var("Py_GIL_DISABLED"):
    sys.exit("a pre-release or free-threaded build")
if sys.version_info < (3, 11) or not sys.version.startswith(sys.argv[1]):
    sys.exit("is Python %d.%d.%d" % sys.version_info[:3])
print(sys._base_executable)  # not the one of a virtual environment that happens to be active
'

# try COMMAND [VERSION]: print the own path of the interpreter (not the shim's) if it runs and is of this version.
try() {
    "$1" -c "$probe" "${2:+$2.}" 2>/dev/null
}

# pyenv_versions VERSION: the interpreters of pyenv, newest patch release first.
pyenv_versions() {
    root=$(pyenv root 2>/dev/null) || root=${PYENV_ROOT:-${HOME:-}/.pyenv}
    ls -d "$root/versions/$1".*/bin/python3 2>/dev/null | sort -rV
}

fail() {
    echo "find_python.sh: $*" >&2
    exit 1
}

if [ $# -eq 0 ] && [ -n "${PYTHON:-}" ]; then
    command -v "$PYTHON" >/dev/null || fail "PYTHON=$PYTHON: no such program"
    try "$PYTHON" && exit
    "$PYTHON" -c "$probe" "" >&2 || true
    fail "PYTHON=$PYTHON cannot be used (see above): Python 3.11 or newer with venv, ensurepip and ssl is needed"
fi

for version in ${1:-3.13 3.12 3.11}; do
    try "python$version" "$version" && exit
    pyenv_versions "$version" | while read -r python; do
        try "$python" "$version" && break
    done | grep . && exit
done
if [ $# -eq 0 ]; then
    try python3 && exit
fi

fail "no Python ${1:-3.11 or newer} with venv, ensurepip and ssl on the PATH or in pyenv." \
    "Install one (on Debian also its -venv package), or set PYTHON to its path."
