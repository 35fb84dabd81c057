#!/usr/bin/env bash
# Looks for known vulnerabilities of the packages of lock files in PyPI's advisory service: setup/audit.sh FILE...
# Exit codes: 0: none found; 1: a package is vulnerable; 3: the service has not answered for all packages.
set -uo pipefail
cd "$(dirname "$0")/.."
result=0
for file in "$@"; do
  echo "== $file"
  output="$(.venv-tools/bin/pip-audit --progress-spinner off --timeout 15 --no-deps --disable-pip --requirement "$file" 2>&1)"
  code=$?
  echo "$output" | tail -n 30
  # With a mirror of PyPI that has no advisories, pip-audit skips packages that it does not find, and ends with 0.
  if echo "$output" | grep -q "could not be audited"; then
    echo "audit: the advisory service does not know all packages of $file (see above), so they are not audited" >&2
    result=3
  elif [ $code -ne 0 ] && echo "$output" | grep -qE "ServiceError|ConnectionError|Connect|HTTPError|timed out|Max retries"; then
    echo "audit: the advisory service cannot be reached, so $file is not audited" >&2
    result=3
  elif [ $code -ne 0 ] && [ $result -eq 0 ]; then
    result=1
  fi
done
exit $result
