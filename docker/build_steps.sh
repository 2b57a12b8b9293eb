#!/bin/sh
# The steps of the image, as the Dockerfile runs them; they need no container engine.
#
#   sh docker/build_steps.sh deps DIR      a virtual environment with the locked run-time packages
#   sh docker/build_steps.sh install DIR   the package into it; what only builds is taken out again
#   sh docker/build_steps.sh smoke DIR     does it start
#   sh docker/build_steps.sh all DIR       one after another, into an empty directory
#
# PYTHON names the interpreter (default python3). Run from the root of the source.
set -eu
step=${1:?deps, install, smoke or all}
dir=${2:?the directory of the environment}
python=${PYTHON:-python3}

deps() {
    if [ -e "$dir" ] && [ -n "$(ls -A "$dir")" ]; then
        echo "$dir is not empty" >&2
        exit 1
    fi
    "$python" -m venv "$dir"
    "$dir/bin/python" -m pip install -q --disable-pip-version-check --no-cache-dir \
        --require-hashes -r docker/requirements.lock
}

install() {
    # From a copy: building leaves files beside the source.
    copy=$(mktemp -d)
    cp -R pyproject.toml README.md LICENSE core storage dashboard migrations "$copy"
    "$dir/bin/python" -m pip install -q --disable-pip-version-check --no-cache-dir \
        --no-deps --no-build-isolation "$copy"
    rm -rf "$copy"
    "$dir/bin/python" -m pip uninstall -q -y setuptools pip
    find "$dir" -type d \( -name tests -o -name test \) -path '*site-packages*' \
        -not -path '*/numpy/*' -not -path '*/pandas/*' -prune -exec rm -rf {} +
}

smoke() {
    # Away from the source, so that it is the installed package that answers.
    cd /
    "$dir/bin/conductor" --help >/dev/null
    "$dir/bin/python" -m core.engines.emulated --help >/dev/null
    "$dir/bin/python" -c 'import core.serve, dashboard.launch, storage.store, storage.migrate as m; assert m.head()'
    echo "smoke: $("$dir/bin/python" -c 'from core.wiring import product_version as v; print(v())') in $dir"
}

case "$step" in
deps) deps ;;
install) install ;;
smoke) smoke ;;
all) deps && install && smoke ;;
*) echo "unknown step $step" >&2 && exit 2 ;;
esac
