#!/usr/bin/env bash
# Asks the advisory service (PyPI's) about the packages of lock files: setup/audit.sh FILE...
# Ends with 0 where none is known to be vulnerable, 1 where one is, 3 where the service could not be asked
# of each of them.
set -uo pipefail
cd "$(dirname "$0")/.."
result=0
for file in "$@"; do
  echo "== $file"
  said="$(.venv-tools/bin/pip-audit --progress-spinner off --timeout 15 --no-deps --disable-pip --requirement "$file" 2>&1)"
  code=$?
  echo "$said" | tail -n 30
  # Where an index stands in for PyPI without its advisories, pip-audit skips what it does not find, and ends with 0.
  if echo "$said" | grep -q "could not be audited"; then
    echo "audit: the advisory service does not know packages of $file (see above): nothing is known of them" >&2
    result=3
  elif [ $code -ne 0 ] && echo "$said" | grep -qE "ServiceError|ConnectionError|Connect|HTTPError|timed out|Max retries"; then
    echo "audit: the advisory service cannot be reached: nothing is known of $file" >&2
    result=3
  elif [ $code -ne 0 ] && [ $result -eq 0 ]; then
    result=1
  fi
done
exit $result
