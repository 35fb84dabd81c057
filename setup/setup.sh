#!/usr/bin/env bash
# Sets up what the commands of the Makefile need: setup/setup.sh [with-PART]...
# Without an argument: what runs, which are .venv with the packages of requirements-run.lock, Delta's jars, Spark's
# configuration folder, and the kernels of a batch. Parts that do not need each other run side by side. Each part that
# is done is noted in .venv/.parts, so a set-up that was killed goes on where it was, and one that has nothing to do
# ends at once.
set -euo pipefail
cd "$(dirname "$0")/.."
venv=.venv
export PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}" # parts run before the project is installed

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

# Prints the SHA-256 of files, by which a part knows that it was done with the same ones.
digest() {
  cat "$@" | sha256sum
}

# Whether a part was done with these files: is_done PART FILE...
is_done() {
  [ "$(cat "$venv/.parts/$1" 2>/dev/null)" = "$(digest "${@:2}")" ]
}

# Runs the function of a part, unless it was done with these files: part FUNCTION FILE...
part() {
  is_done "$@" && return
  "$1"
  mkdir -p "$venv/.parts"
  digest "${@:2}" >"$venv/.parts/$1"
}

# Runs commands at the same time; if one fails, or this script is stopped, the others are ended.
side_by_side() {
  local command running=() failed=
  set -m # each in a process group of its own, which ends as a whole
  for command in "$@"; do
    # shellcheck disable=SC2086
    (set -e; $command) </dev/null &
    running+=($!)
  done
  set +m
  # shellcheck disable=SC2064
  trap "kill -- ${running[*]/#/-} 2>/dev/null || true" EXIT
  trap 'exit 130' INT
  trap 'exit 143' TERM
  for command in "${running[@]}"; do
    wait -n || { failed=yes; break; }
  done
  [ -z "$failed" ] || exit 1
  trap - EXIT INT TERM
}

pip() {
  "$venv/bin/python" -m pip --disable-pip-version-check --quiet "$@"
}

# Prints a setting of pip, from its files or the environment.
pip_setting() {
  "$venv/bin/python" -m pip --disable-pip-version-check config list 2>/dev/null |
    sed -n "s/^[a-z:]*\.$1='\(.*\)'\$/\1/p" | tail -n 1
}

# The setuptools that builds packages; and in an environment of its own uv, which installs them in a third of pip's time.
tools() {
  local tools=.venv-tools
  grep '^setuptools==' setup/tools.lock | pip install --require-hashes -r /dev/stdin
  "$venv/bin/python" -m venv "$tools"
  "$tools/bin/python" -m pip --disable-pip-version-check --quiet install --require-hashes -r setup/tools.lock ||
    echo "set-up: uv cannot be installed here, so pip installs the packages, which takes longer" >&2
}

# Installs the packages of a lock file; an archive without the SHA-256 of the lock is refused.
install_lock() {
  local common=(install --no-deps --no-build-isolation --require-hashes -r "$1")
  echo "set-up: packages of $1"
  if [ ! -x .venv-tools/bin/uv ]; then
    pip "${common[@]}" --use-pep517
    return
  fi
  # Indexes and folders of archives that were set for pip are used; uv has names of its own for them.
  local index extra links
  index="$(pip_setting index-url)" extra="$(pip_setting extra-index-url)" links="$(pip_setting find-links)"
  UV_DEFAULT_INDEX="${UV_DEFAULT_INDEX:-$index}" UV_INDEX="${UV_INDEX:-$extra}" \
    UV_FIND_LINKS="${UV_FIND_LINKS:-$links}" UV_HTTP_TIMEOUT="${UV_HTTP_TIMEOUT:-180}" \
    .venv-tools/bin/uv pip "${common[@]}" --quiet --python "$venv/bin/python" \
    --config-settings-package "pyspark:--build-option=--compression=stored"
}

packages() {
  install_lock requirements-run.lock
  "$venv/bin/python" setup/remove_unused.py
}

packages_of_tests() {
  install_lock requirements-test.lock
}

packages_of_docs() {
  install_lock requirements-docs.lock
}

# The command `aggregator`, and the project's own modules for other folders.
project() {
  pip install --no-deps --no-build-isolation -e .
}

jars() {
  "$venv/bin/python" -m aggregator setup delta
}

bytecode() {
  "$venv/bin/python" setup/compile_pyspark.py
}

class_archive() {
  "$venv/bin/python" -m aggregator setup classes || true # everything works without it
}

# Whether the kernels were compiled with the locked numba. Machine code lies beside the sources, and goes with it
# (`make clean`): so does the note. After a change of a kernel, its first call compiles it.
has_kernels() {
  [ "$(cat udfs/__pycache__/compiled 2>/dev/null)" = "$(grep '^numba==' requirements-run.lock)" ]
}

kernels() {
  ! has_kernels || return 0
  "$venv/bin/python" -m aggregator setup batch-kernels
  grep '^numba==' requirements-run.lock >udfs/__pycache__/compiled
}

want_tests() {
  part packages_of_tests requirements-test.lock
  part packages_of_docs requirements-docs.lock
  part class_archive "${of_jars[@]}" jobs/installation/java_archive.py
}

want_docs() {
  part packages_of_docs requirements-docs.lock
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
  part jars_of_s3 "${of_jars[@]}" jobs/installation/jars-s3.sha256
  part s3_server setup/s3.lock
}

jars_of_s3() {
  "$venv/bin/python" -m aggregator setup s3
  class_archive # Java ignores an archive that was made with other jars
}

s3_server() {
  local server="$venv/s3-server"
  echo "set-up: $server"
  "$venv/bin/python" -m venv --clear "$server"
  # shellcheck disable=SC2046
  "$server/bin/python" -m pip --disable-pip-version-check --quiet install $(locked s3)
}

# `spark-pipelines` is a client of Spark Connect, which pyspark does not install by itself.
want_pipelines() {
  part pipelines setup/pipelines.lock
}

pipelines() {
  echo "set-up: spark-pipelines"
  # shellcheck disable=SC2046
  pip install $(locked pipelines)
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

of_packages=(setup/tools.lock requirements-run.lock)
of_project=("${of_packages[@]}" pyproject.toml)

if ! is_done tools setup/tools.lock || ! is_done packages "${of_packages[@]}"; then
  check_java
  python="$(find_python)"
  make_venv "$python"
  part tools setup/tools.lock
  part packages "${of_packages[@]}"
fi
# Another version of Spark comes without what these parts have put into its folder.
spark=("$venv"/lib/python3*/site-packages/pyspark/version.py)
of_jars=("${spark[0]}" jobs/installation/spark_jars.py jobs/installation/jars-delta.sha256)
of_bytecode=("${spark[0]}" setup/compile_pyspark.py)
if ! has_kernels || ! is_done jars "${of_jars[@]}" || ! is_done project "${of_project[@]}" || ! is_done bytecode "${of_bytecode[@]}"; then
  side_by_side kernels "part jars ${of_jars[*]}" "part project ${of_project[*]}" "part bytecode ${of_bytecode[*]}"
fi
for wanted in "$@"; do
  "want_${wanted#with-}"
done
