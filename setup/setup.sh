#!/usr/bin/env bash
# Installs what the commands of the Makefile need: .venv from requirements.lock, Delta's jars, Spark's configuration
# folder, and with an argument (`with-tarantool`, ...) what some of them need. Ends at once if nothing is missing.
set -euo pipefail
cd "$(dirname "$0")/.."
venv=.venv

fail() {
  echo "set-up: $1" >&2
  exit 1
}

# Runs apt-get as root, or by a sudo that asks for no password; fails for other users.
apt_install() {
  command -v apt-get >/dev/null || return 1
  local sudo=()
  if [ "$(id -u)" != 0 ]; then
    sudo -n true 2>/dev/null || return 1
    sudo=(sudo)
  fi
  local apt=("${sudo[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -qq -o Dpkg::Use-Pty=0)
  "${apt[@]}" install -y --no-install-recommends "$@" </dev/null >/dev/null 2>&1 ||
    { "${apt[@]}" update </dev/null && "${apt[@]}" install -y --no-install-recommends "$@" </dev/null; } >/dev/null
}

find_python() {
  local candidate
  for candidate in "${PYTHON:-}" python3.11 python3 python; do
    [ -n "$candidate" ] || continue
    "$candidate" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' 2>/dev/null && echo "$candidate" && return
  done
  fail "Python 3.11 is missing: install it (Debian 12: apt-get install python3.11 python3.11-venv), or name one: PYTHON=/path/to/python3.11 make setup"
}

check_java() {
  local java="${JAVA_HOME:+$JAVA_HOME/bin/}java" version
  version="$("$java" -version 2>&1 | sed -n '1s/.*version "\([0-9]*\).*/\1/p')" || true
  case "$version" in
    17 | 21) ;;
    "") fail "Java 17 is missing: install it (Debian 12: apt-get install openjdk-17-jre-headless), or set JAVA_HOME" ;;
    *) fail "Java 17 is needed, '$java' is Java $version: set JAVA_HOME to a Java 17" ;;
  esac
}

make_venv() {
  local python="$1"
  "$venv/bin/python" -c 'import sys, pip; sys.exit(sys.version_info[:2] != (3, 11))' 2>/dev/null && return
  echo "set-up: $venv"
  "$python" -m venv --clear "$venv" >/dev/null 2>&1 && return
  # Debian packs the part of Python that puts pip into a virtual environment separately.
  apt_install python3.11-venv && "$python" -m venv --clear "$venv" && return
  fail "'$python -m venv' does not work: install it (Debian 12: apt-get install python3.11-venv)"
}

install_packages() {
  local pip=("$venv/bin/python" -m pip --disable-pip-version-check --quiet)
  echo "set-up: packages of requirements.lock"
  # pip refuses an archive without the SHA-256 of the lock.
  "${pip[@]}" install --require-hashes -r requirements.lock
  "${pip[@]}" --quiet install --no-deps --no-build-isolation -e .
}

want_tarantool() {
  command -v tarantool >/dev/null && return
  echo "set-up: tarantool"
  apt_install tarantool && command -v tarantool >/dev/null && return
  echo "set-up: no tarantool here, and it cannot be installed: the tests marked 'live' will be skipped" >&2
}

# The tests of the report open it in Chromium; that of Playwright would be another 400 MB.
want_chromium() {
  command -v chromium >/dev/null && return
  echo "set-up: chromium"
  apt_install chromium && command -v chromium >/dev/null && return
  echo "set-up: no chromium here, and it cannot be installed: the tests marked 'browser' will be skipped" >&2
}

# Prints pip's arguments for packages outside of requirements.lock: their lock with hashes, else their first packages.
locked() {
  if [ -f "setup/$1.lock" ]; then
    echo "--require-hashes -r setup/$1.lock"
  else
    echo "set-up: setup/$1.lock is missing, so dependencies are not pinned: setup/locks.py $1 makes it" >&2
    "$venv/bin/python" setup/locks.py packages "$1"
  fi
}

# Airflow needs an environment of its own, because its Spark provider installs a pyspark-client over pyspark's files.
want_airflow() {
  local airflow=.venv-airflow packages
  packages="$(locked airflow)"
  [ "$(cat "$airflow/.set-up" 2>/dev/null)" = "$packages" ] && return
  echo "set-up: $airflow"
  "$venv/bin/python" -m venv --clear "$airflow"
  # shellcheck disable=SC2086
  "$airflow/bin/python" -m pip --disable-pip-version-check --quiet install $packages
  echo "$packages" >"$airflow/.set-up"
}

# Spark's jars for s3a:// have 18 MiB, and few users need them. The S3 server of the tests has an environment of its own,
# because its packages need other versions than ours.
want_s3() {
  local server="$venv/s3-server" packages done
  packages="$(locked s3)"
  done="$wanted $packages"
  [ "$(cat "$venv/.set-up-s3" 2>/dev/null)" = "$done" ] && return
  "$venv/bin/python" setup/spark_jars.py s3
  "$venv/bin/python" setup/java_archive.py
  echo "set-up: $server"
  "$venv/bin/python" -m venv --clear "$server"
  # shellcheck disable=SC2086
  "$server/bin/python" -m pip --disable-pip-version-check --quiet install $packages
  echo "$done" >"$venv/.set-up-s3"
}

# `spark-pipelines` is a client of Spark Connect, which pyspark does not install by itself.
want_pipelines() {
  local packages
  packages="$(locked pipelines)"
  [ "$(cat "$venv/.set-up-pipelines" 2>/dev/null)" = "$wanted $packages" ] && return
  echo "set-up: spark-pipelines"
  # shellcheck disable=SC2086
  "$venv/bin/python" -m pip --disable-pip-version-check --quiet install $packages
  echo "$wanted $packages" >"$venv/.set-up-pipelines"
}

# promtool tests the alerts. It is extracted from Debian's package, whose installation would start a server.
want_promtool() {
  local folder
  [ ! -x "$venv/bin/promtool" ] || return 0
  command -v apt-get >/dev/null || fail "promtool is missing: put the one of Prometheus' release into $venv/bin"
  echo "set-up: promtool"
  folder="$(mktemp -d)"
  (cd "$folder" && apt-get -qq download prometheus 2>/dev/null && dpkg-deb -x prometheus_*.deb .) ||
    fail "apt-get download prometheus does not work (apt-get update?)"
  install -m 755 "$folder/usr/bin/promtool" "$venv/bin/promtool"
  rm -rf "$folder"
}

stamp="$venv/.set-up"
wanted="$(cat requirements.lock pyproject.toml setup/*.sh setup/*.py | sha256sum)"
if [ "$(cat "$stamp" 2>/dev/null)" != "$wanted" ]; then
  check_java
  python="$(find_python)"
  make_venv "$python"
  install_packages
  "$venv/bin/python" setup/spark_jars.py delta
  "$venv/bin/python" setup/compile_pyspark.py
  "$venv/bin/python" setup/java_archive.py
  echo "$wanted" >"$stamp"
fi
[ "${1:-}" != with-tarantool ] || want_tarantool
[ "${1:-}" != with-airflow ] || want_airflow
[ "${1:-}" != with-s3 ] || want_s3
[ "${1:-}" != with-pipelines ] || want_pipelines
[ "${1:-}" != with-promtool ] || want_promtool
[ "${1:-}" != with-chromium ] || want_chromium
