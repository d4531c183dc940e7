#!/usr/bin/env bash
# Build the sdist, the wheel from it, install the wheel into an empty environment, and ask the default model a question there.
set -euo pipefail
python=${1:-python3}
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
install() { "$place/$1/bin/python" -m pip --disable-pip-version-check --no-input install -q -c "$root/constraints.txt" "${@:2}"; }

"$python" -m venv "$place/build"
install build build
mkdir "$place/source"
git -C "$root" ls-files -z | (cd "$root" && xargs -0 tar -c) | tar -x -C "$place/source" # what is tracked, as it stands
(cd "$place" && build/bin/python -m build -o dist source >build.log 2>&1) || { tail -n 20 "$place/build.log" >&2; exit 1; }

"$python" -m venv "$place/empty"
install empty "$(grep '^torch==' "$root/constraints.txt")"
install empty "$place"/dist/*.whl
cd "$place"
answer=$(printf 'What is the capital of France?\n' | empty/bin/lengthwise run --no-journal)
printf '%s\n%s\n' "$answer" "$(du -h dist/*)"
grep -q Paris <<<"$answer"
