#!/bin/bash
# Not run on YARN (none here): a test packs some packages and works with them in another folder.
# Makes the archive of executors' Python: pack_python.sh FILE.tar.gz [LOCK]. Nodes need Python 3.11 at the path of the python3.11 here.
# The job's own code is not in it: each job brings its own.
set -euo pipefail
archive=$(realpath -m "$1") project=$(realpath "$(dirname "$0")/../../..")
lock=$(realpath "${2:-$project/requirements.lock}") uv=$project/.venv/bin/uv
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

# The Python under the project's own, which every node has.
base=$("$project/.venv/bin/python" -c 'import os, sys; print(os.path.realpath(sys.executable))')
"$uv" venv --quiet --relocatable --python "$base" "$folder/python"
"$uv" pip sync --quiet --python "$folder/python/bin/python" --system-certs --link-mode copy --require-hashes --build-constraints "$lock" "$lock"
tar --directory "$folder/python" --create --gzip --file "$archive" .
