#!/usr/bin/env bash
# The quick tests against an installed wheel, for each Python found here and the oldest, pinned and newest packages.
#
#   tools/test_matrix.sh                          # python3.11, 3.12 and 3.13, where they are found
#   PYTHONS="python3.13" tools/test_matrix.sh
#
# Prints one row for each combination: versions and the outcome of the tests, or why it was not installed. Warnings of
# other packages about each other are no errors here, as they are with the pinned versions.
# Downloads torch for each (gigabytes, where no CPU build is at hand).
set -uo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

# The lower bounds of [project] dependencies as pins.
sed -n '/^dependencies = \[/,/^\]/s/^ *"\([a-z0-9-]*\)\(\[[a-z]*\]\)\{0,1\}>=\([0-9.]*\)",$/\1==\3/p' \
  "$root/pyproject.toml" > "$folder/oldest.txt"
: > "$folder/newest.txt"
cp "$root/constraints.txt" "$folder/pinned.txt"

echo "| Python | packages | versions | outcome |"
echo "|---|---|---|---|"
for python in ${PYTHONS:-python3.11 python3.12 python3.13}; do
  if ! command -v "$python" > /dev/null; then
    echo "| $python | | | not found on this machine |"
    continue
  fi
  for packages in ${PACKAGES:-oldest pinned newest}; do
    log="$folder/$python-$packages.log"
    PYTEST_ARGS="-o filterwarnings=default" "$root/tools/check_installed.sh" "$python" -c "$folder/$packages.txt" > "$log" 2>&1
    versions=$(sed -n 's/^versions: //p' "$log")
    outcome=$(grep -E '^([0-9]+ (passed|failed)|=+ .*(passed|failed|error))' "$log" | tail -1)
    if [ -z "$outcome" ]; then
      outcome="not installed: $(grep -E 'ERROR|rror:' "$log" | head -1 | cut -c1-200)"
    fi
    echo "| $("$python" -c 'import platform; print(platform.python_version())') | $packages | $versions | $outcome |"
    [ -z "${LOGS:-}" ] || cp "$log" "$LOGS/"
  done
done
