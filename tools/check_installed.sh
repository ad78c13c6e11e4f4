#!/usr/bin/env bash
# Build wheel and sdist, install the wheel into a new environment, run tests of the unpacked sdist against it.
#
#   tools/check_installed.sh python3.11 -c constraints.txt           # the pinned versions
#   tools/check_installed.sh python3.13                              # the newest ones
#   TESTS="tests/cli/test_cli.py" tools/check_installed.sh python3.12
#   WHOLE=1 tools/check_installed.sh python3.11 -c constraints.txt   # everything that `make test` runs
#
# Everything goes into a temporary folder; the checkout's own gears/ is not on the path of the tests.
set -euo pipefail
python=${1:?name a Python, such as python3.12}
shift
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
quick="tests/cell_gears/test_drop_in.py tests/cell_gears/test_published_model.py tests/cell_gears/test_published.py tests/cli/test_cli_files.py
  tests/test_pertdata.py tests/prediction/test_predictions.py tests/prediction/test_prediction_adata.py tests/test_conditions.py tests/files/test_files.py"
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$root"
"$python" -m venv "$folder/env"
pip=("$folder/env/bin/python" -m pip --quiet --disable-pip-version-check)
"${pip[@]}" install build
"$folder/env/bin/python" -m build --outdir "$folder/dist" . > "$folder/build.log" || { cat "$folder/build.log"; exit 1; }
wheel=$(ls "$folder"/dist/*.whl)
"${pip[@]}" install --no-compile "$@" "${wheel}[test]"
mkdir "$folder/src"
tar xzf "$folder"/dist/*.tar.gz -C "$folder/src" --strip-components=1
rm -r "$folder/src/gears"
cd "$folder/src"
unset PYTHONPATH
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"  # several test processes share the cores
time "$folder/env/bin/python" -W "${WARNINGS:-error}" -c "import gears; print(gears.__file__)"
"$folder/env/bin/gears" --version
"$folder/env/bin/python" -c '
from importlib.metadata import version
print("versions:", ", ".join(f"{name} {version(name)}" for name in "anndata numpy pandas scipy torch".split()))'
if [ -n "${WHOLE:-}" ]; then
  "$folder/env/bin/python" -m pytest -q -m "not long" -n 2
else
  # shellcheck disable=SC2086
  "$folder/env/bin/python" -m pytest -q -m "not long and not slow" ${PYTEST_ARGS:-} ${TESTS:-$quick}
fi
