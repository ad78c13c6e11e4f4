#!/usr/bin/env bash
# The quick tests against an installed wheel, for each Python found here and the oldest, pinned and newest packages.
#
#   tools/test_matrix.sh                          # python3.11, 3.12 and 3.13, where they are found
#   PYTHONS="python3.13" tools/test_matrix.sh
#
# Prints one row for each combination: versions and the outcome of the tests, or why it was not installed. Warnings of
# other packages about each other are no errors here, as they are with the pinned versions. "oldest" are the lower bounds
# of pyproject.toml, or the first releases that can be installed on that Python. Nothing numerical is compiled here.
# Downloads torch for each (gigabytes, where no CPU build is at hand). LOGS=FOLDER keeps the output of each row.
set -uo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

# The lower bounds of [project] dependencies as pins.
sed -n '/^dependencies = \[/,/^\]/s/^ *"\([a-z0-9-]*\)\(\[[a-z]*\]\)\{0,1\}>=\([0-9.]*\)",$/\1==\3/p' \
  "$root/pyproject.toml" > "$folder/oldest.txt"
: > "$folder/newest.txt"
cp "$root/constraints.txt" "$folder/pinned.txt"
# Lower bounds of which a Python has no wheel (h5py 3.12.0 was withdrawn), as the first release that it has.
raised() {
  case $("$1" -c 'import sys; print("%d.%d" % sys.version_info[:2])') in
    3.11) echo h5py==3.12.1 ;;
    3.12) echo h5py==3.12.1 pandas==2.1.1 pyyaml==6.0.1 ;;
    *) echo h5py==3.12.1 numpy==2.1.0 pandas==2.2.3 pyyaml==6.0.2 scanpy==1.10.3 scipy==1.14.1 ;;
  esac
}

echo "| Python | packages | versions | outcome |"
echo "|---|---|---|---|"
for python in ${PYTHONS:-python3.11 python3.12 python3.13}; do
  if ! command -v "$python" > /dev/null; then
    echo "| $python | | | not found on this machine |"
    continue
  fi
  for packages in ${PACKAGES:-oldest pinned newest}; do
    log="$folder/$python-$packages.log"
    pins="$folder/$packages.txt"
    if [ "$packages" = oldest ]; then
      pins="$folder/oldest-$python.txt"
      cp "$folder/oldest.txt" "$pins"
      for pin in $(raised "$python"); do
        sed -i "s/^${pin%%=*}==.*/$pin/" "$pins"
      done
    fi
    PIP_ONLY_BINARY="h5py,llvmlite,matplotlib,numba,numpy,pandas,pyyaml,scikit-learn,scipy,torch" WARNINGS=default \
      PYTEST_ARGS="-o filterwarnings=default" "$root/tools/check_installed.sh" "$python" -c "$pins" > "$log" 2>&1
    versions=$(sed -n 's/^versions: //p' "$log")
    outcome=$(grep -E '^([0-9]+ (passed|failed)|=+ .*(passed|failed|error))' "$log" | tail -1)
    if [ -z "$outcome" ]; then
      outcome="not installed: $(grep -E 'ERROR|rror:' "$log" | head -1 | cut -c1-200)"
    fi
    echo "| $("$python" -c 'import platform; print(platform.python_version())') | $packages | $versions | $outcome |"
    [ -z "${LOGS:-}" ] || cp "$log" "$LOGS/"
  done
done
