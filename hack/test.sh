#!/usr/bin/env bash
# All checks and tests, in the order in which a mistake shows soonest. A
# stage that needs another's result is not run when that one failed; all others
# are, so that one run shows all failures. Unit tests keep the processors busy, tests
# on a cluster mostly wait: they run side by side.
#
#   hack/test.sh [test|unit|lint|e2e|soak|fuzz|upgrade]
#
# upgrade goes from the release in the folder FROM (made by `make release`) to this checkout.
# THIRD (0, 1, 2 or all) chooses what is told of the campaigns: without it the third goes by the number of commits, and soak tells all
# (docs/decisions/0033-campaigns-by-thirds.md).
# KEEP=1 leaves a cluster that this run started, for a look around; TEST_BACKTRACE=1 prints the
# frames of panics.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
. "$(dirname "${BASH_SOURCE[0]}")/target-cluster.sh"
cd "$SKYWARD_ROOT"

# cargo runs each crate's tests in the crate's own folder.
if [ -n "${SKYWARD_SPECS:-}" ]; then
  SKYWARD_SPECS=$(realpath -m "$SKYWARD_SPECS")
  export SKYWARD_SPECS
fi

# The clouds' own clients start hundreds of times, and are installed without what Python compiles (hack/vendor-clients.sh), since most of
# it is never imported: Python keeps what it has compiled itself.
unset PYTHONDONTWRITEBYTECODE

# Go's scheduler looks for work on each processor that it may use. Where all of them are busy anyway, components that use half
# of them have a quarter less to do.
export COMPONENT_PROCESSORS=${COMPONENT_PROCESSORS:-$((($(nproc) + 1) / 2))}

# A failure is shown in a line or two, not below a hundred lines of async frames.
export RUST_BACKTRACE=${TEST_BACKTRACE:-0}
WHAT=${1:-test}
# Runs of different commits tell different thirds. A folder that is no clone has the first one.
case $WHAT-${THIRD:-} in
  *-all | soak-*) unset SKYWARD_THIRD ;;
  *-[012]) export SKYWARD_THIRD=$THIRD ;;
  *-) export SKYWARD_THIRD=$(($(git rev-list --count HEAD 2>/dev/null || printf 0) % 3)) ;;
  *) die "THIRD is '$THIRD'; it can be 0, 1, 2 or all" ;;
esac
KUBECONFIG_TEST=$SKYWARD_CACHE/test/kubeconfig
BEGUN=$SECONDS
CLUSTER_IS_NEW=no
BROUGHT_APART=no # whether this run starts the second cluster
SUMMARY=() # seconds, a tab, what is said of a stage
declare -A OUTCOME=()
PRINTED=$(mktemp -d) # a file for each stage
RUNNING= # pid of a stage with a limit
CURRENT= # title of the stage at work
declare -A BESIDE=() BESIDE_SAID=() # of stages that run beside the others, by a name: pid, and folder with what they say

# --- stages ------------------------------------------------------------------

# stage ID "NEEDED STAGES" MINUTES TITLE COMMAND...
# The limit ends a hang with everything the stage started; it runs in a process
# group of its own for that. What it prints is kept until the end: a failure among an hour's
# output is said again there.
stage() {
  local id=$1 needs=$2 minutes=$3 title=$4 need begun=$SECONDS rc=0
  local out tee
  shift 4
  for need in $needs; do
    if [ "${OUTCOME[$need]:-}" != ok ]; then
      OUTCOME[$id]=skipped
      SUMMARY+=("0	not run  $title (needs: $need)")
      return
    fi
  done
  say
  say "=== $title"
  OUTCOME[$id]=failed
  CURRENT=$title
  exec {out}> >(tee "$PRINTED/$id")
  tee=$!
  if [ "$minutes" = 0 ]; then
    "$@" </dev/null >&"$out" 2>&1 || rc=$?
  else
    timeout --kill-after 15 "${minutes}m" "$@" </dev/null >&"$out" 2>&1 &
    RUNNING=$!
    wait "$RUNNING" || rc=$?
    RUNNING=
    ((rc != 124)) || warn "error: this took longer than $minutes minutes and was ended"
  fi
  CURRENT=
  exec {out}>&-
  # What a stage started and leaves running may hold it open.
  timeout 2 tail --pid "$tee" -f /dev/null || true
  local took=$((SECONDS - begun))
  if ((rc == 0)); then
    OUTCOME[$id]=ok
    SUMMARY+=("$took	ok       $title ($(elapsed $took))")
  else
    SUMMARY+=("$took	FAILED   $title ($(elapsed $took))")
    warn "=== failed: $title (exit status $rc)"
  fi
}

# beside NAME FUNCTION: run its stages while the others go on. Their output is shown as a whole when
# they are joined; their results, and the variables SKYWARD_… that they set, are passed on in a file.
beside() {
  local name=$1 said
  shift
  said=$(mktemp -d)
  BESIDE_SAID[$name]=$said
  (
    trap - EXIT
    BESIDE=() # what runs beside these stages, and not beside the others
    trap 'kill -TERM $RUNNING "${BESIDE[@]}" 2>/dev/null || true; exit 143' INT TERM
    # shellcheck disable=SC2030 # handed over below
    SUMMARY=()
    "$@"
    {
      declare -p OUTCOME | sed 's/^declare -A OUTCOME=/FOUND=/'
      declare -p SUMMARY | sed 's/^declare -a SUMMARY=/TOLD=/'
      local variable
      for variable in "${!SKYWARD_@}"; do printf 'export %s=%q\n' "$variable" "${!variable}"; done
    } >"$said/outcome"
  ) >"$said/output" 2>&1 </dev/null &
  BESIDE[$name]=$!
}
# join NAME: wait for them.
join() {
  local -A FOUND=()
  local TOLD=() id said=${BESIDE_SAID[$1]:-}
  [ -n "${BESIDE[$1]:-}" ] || return 0
  wait "${BESIDE[$1]}" || true
  unset "BESIDE[$1]"
  cat "$said/output"
  if [ -e "$said/outcome" ]; then
    # shellcheck disable=SC1091 # written by beside
    . "$said/outcome"
    for id in "${!FOUND[@]}"; do OUTCOME[$id]=${OUTCOME[$id]:-${FOUND[$id]}}; done
    # shellcheck disable=SC2031
    SUMMARY+=("${TOLD[@]}")
  else
    OUTCOME[beside-$1]=failed
    SUMMARY+=("0	FAILED   what ran beside the others ($1): it was ended")
  fi
  rm -rf "$said"
}

# absent ID PATH TITLE: mark a stage whose folder does not exist.
absent() {
  [ ! -e "$2" ] || return 1
  OUTCOME[$1]=ok
  SUMMARY+=("0	absent   $3: there is no $2")
}

shell_lint() {
  debian shellcheck && shellcheck -x hack/*.sh hack/*/*.sh tests/*/*.sh .ci/run
}
# The SSH client is tested against a real OpenSSH server, which the tests start
# themselves; RUNLEVEL=1 keeps Debian's script from starting one for everybody.
openssh_server() {
  [ -x /usr/sbin/sshd ] || RUNLEVEL=1 debian openssh-server
}
# No test compiles the examples of comments: rustdoc would read each crate once more to find that there are none.
examples_in_comments() {
  git ls-files -z '*.rs' | python3 -c '
import re, sys
found = []
for path in filter(None, sys.stdin.read().split("\0")):
    inside = False
    with open(path, encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            fence = re.match(r"\s*//[/!]\s*(?:`{3,}|~{3,})(.*)$", line)
            if not fence:
                inside = inside and re.match(r"\s*//[/!]", line) is not None
                continue
            word = fence.group(1).strip()
            if not inside and (not word or re.search("rust|edition|should_panic|no_run|compile_fail", word)):
                found.append(f"{path}:{number}")
            inside = not inside
if found:
    sys.exit("examples that no test compiles; write a unit test, or mark them as text: " + " ".join(found))
'
}
go_format() {
  local unformatted
  unformatted=$(gofmt -l hack/cluster) || return
  [ -z "$unformatted" ] || die "not formatted, run 'gofmt -w hack/cluster': $unformatted"
}
dependency_lint() {
  local programs
  programs=$(hack/cargo-lints.sh) || return
  "$programs/cargo-deny" --locked --workspace check bans licenses sources &&
    "$programs/cargo-shear" --locked
}
chart_lint() {
  debian lua5.4 && SKYWARD_BIN_DIR=$SKYWARD_BIN_DIR tests/chart/run.sh && python3 tests/chart/permissions_test.py -q
}
permissions() {
  local apart=$PRINTED/audit-apart
  [ -d "$apart" ] || apart=$SKYWARD_STATE-apart/log
  KUBECONFIG=$KUBECONFIG_TEST SKYWARD_BIN_DIR=$SKYWARD_BIN_DIR tests/chart/permissions.py "$SKYWARD_STATE"/log/audit*.log "$apart"/audit*.log
}

bring_cluster() { get_cluster "$KUBECONFIG_TEST"; }
# apart COMMAND...: with the second cluster (hack/cluster/env.sh) as the local one.
apart() { env SKYWARD_APART=1 "$@"; }
inside_apart() { apart hack/cluster/cluster.sh enter "$@"; }
# Leaves a program that runs another one there, with the settings of tests.
bring_apart() {
  local settings
  apart hack/cluster/cluster.sh up && apart hack/cluster/cluster.sh load "$SKYWARD_IMAGES"/{operator,node}.tar &&
    settings=$(apart hack/test-env.sh) || return
  printf '#!/usr/bin/env bash\nexport SKYWARD_APART=1\n%s\nexec %q enter "$@"\n' \
    "$settings" "$SKYWARD_ROOT/hack/cluster/cluster.sh" >"$PRINTED/inside-apart" && chmod +x "$PRINTED/inside-apart"
}
build_images() {
  hack/images.sh --no-load && publish_images "$(cat "$SKYWARD_IMAGES/operator.name")" && test_env
}
test_env() {
  local settings
  settings=$(OPERATOR_IMAGE=$OPERATOR_IMAGE NODE_IMAGE=$NODE_IMAGE hack/test-env.sh "$KUBECONFIG_TEST") && eval "$settings"
}

# The second cluster goes when its stories are over: idle, it would take some of the time of others. Of a story
# that failed it is the evidence.
end_apart() {
  local program
  [ "${OUTCOME[apart]:-}" = ok ] && [ -z "${KEEP:-}" ] || return 0
  for program in $(programs_apart); do [ "${OUTCOME[e2e-$program]:-}" = ok ] || return 0; done
  stage apart-down apart 0 "second cluster down" apart_down
}
apart_is_there() { [ "$BROUGHT_APART" = yes ] && [ "${OUTCOME[apart-down]:-}" != ok ]; }
# What its API server wrote down stays, for `permissions`.
apart_down() {
  mkdir "$PRINTED/audit-apart" && cp "$SKYWARD_STATE-apart"/log/audit*.log "$PRINTED/audit-apart" && apart hack/cluster/cluster.sh down
}

# The chart and the image that an upgrade begins with.
release_before() {
  [ -f "${FROM:-}/SHA256SUMS" ] || die "FROM='${FROM:-}' is no folder that 'make release' made: make upgrade FROM=DIR"
  (cd "$FROM" && sha256sum --quiet -c SHA256SUMS) || return
  SKYWARD_BEFORE_CHART=$(realpath "$FROM"/skyward-*.tgz)
  export SKYWARD_BEFORE_CHART
}

# --- when something failed ---------------------------------------------------

# keep_evidence: save what a later diagnosis needs, before the cluster goes.
keep_evidence() {
  local to
  to=$SKYWARD_LOG_DIR/test-$(date +%Y%m%d-%H%M%S)
  evidence_of "$to" "$SKYWARD_STATE" "$SKYWARD_BIN_DIR/kubectl" --kubeconfig "$KUBECONFIG_TEST"
  if apart_is_there; then
    evidence_of "$to-apart" "$SKYWARD_STATE-apart" inside_apart "$SKYWARD_BIN_DIR/kubectl" --kubeconfig "$SKYWARD_STATE-apart/kubeconfig"
  fi
}
# evidence_of FOLDER STATE KUBECTL...: of one cluster.
evidence_of() {
  local to=$1 state=$2 pod k
  k=("${@:3}" --request-timeout 20s)
  mkdir -p "$to"
  if [ -f "$state/kubeconfig" ]; then
    {
      "${k[@]}" get events -A --sort-by .lastTimestamp >"$to/events.txt"
      "${k[@]}" get pods,services,apiservices -A -o wide >"$to/objects.txt"
      "${k[@]}" get providers.skyward.dev,pools.skyward.dev,machines.skyward.dev,tasks.skyward.dev,crontasks.skyward.dev -A -o yaml >"$to/skyward.yaml"
      for pod in $("${k[@]}" get pods -n skyward-system -o name); do
        "${k[@]}" logs -n skyward-system "$pod" --all-containers --prefix --tail 5000 >"$to/${pod#pod/}.log"
        "${k[@]}" logs -n skyward-system "$pod" --all-containers --previous --tail 5000 >"$to/${pod#pod/}.previous.log" || true
        "${k[@]}" describe -n skyward-system "$pod" >>"$to/pods.txt"
      done
    } 2>"$to/errors.txt" || true
    find "$to" -empty -delete
    for pod in "$to"/skyward*.log; do
      [ -e "$pod" ] || continue
      warn "--- the end of $pod"
      tail -n 15 "$pod" | cut -c1-300 | sed 's/^/    /' >&2
    done
    if [ -s "$to/events.txt" ]; then
      warn "--- the last events that are warnings ($to/events.txt has all)"
      { grep -w Warning "$to/events.txt" || true; } | tail -n 10 | cut -c1-300 | sed 's/^/    /' >&2
    fi
  fi
  [ ! -d "$state/log" ] || cp -r "$state/log" "$to/cluster" 2>/dev/null || true
  warn "What the cluster and the controller said is kept in $to"
}

# failure_in ID: what a stage said of its failure, or the end of its output.
failure_in() {
  local said
  said=$(grep -A 8 -E "^(thread '.*panicked at|Error: |error(\[|:))" "$PRINTED/$1" || tail -n 15 "$PRINTED/$1")
  say
  say "=== what failed in $1"
  head -n 60 <<<"$said" | cut -c1-400 | sed 's/^/  /'
}

finish() {
  local rc=$? id failed=0
  trap - EXIT INT TERM
  if [ -n "$RUNNING" ]; then
    kill -TERM "$RUNNING" 2>/dev/null || true
    wait "$RUNNING" 2>/dev/null || true
  fi
  for id in "${!BESIDE[@]}"; do
    ((rc == 0)) || kill -TERM "${BESIDE[$id]}" 2>/dev/null || true
    join "$id"
  done
  [ -z "$CURRENT" ] || SUMMARY+=("0	FAILED   $CURRENT")
  for id in "${!OUTCOME[@]}"; do [ "${OUTCOME[$id]}" = ok ] || failed=1; done
  if ((failed || rc)) && [[ ${OUTCOME[cluster]:-} =~ ^(ok|failed)$ ]]; then keep_evidence; fi
  # Where the first one goes, too, the second one goes with it.
  if apart_is_there && [ "$CLUSTER_IS_NEW${KEEP:-}" = no ]; then apart hack/cluster/cluster.sh down || failed=1; fi
  if [ "$CLUSTER_IS_NEW" = yes ]; then
    if [ -n "${KEEP:-}" ]; then
      say "The cluster stays (KEEP=$KEEP). KUBECONFIG=$KUBECONFIG_TEST; 'make cluster-down' removes it."
    else
      OUTCOME[down]=failed
      say
      say "=== cluster down"
      if "$SKYWARD_ROOT/hack/cluster/cluster.sh" down; then OUTCOME[down]=ok; else failed=1; fi
    fi
  fi
  [ -n "${KEEP:-}" ] || rm -rf "$SKYWARD_CACHE/test"
  say
  say "=== summary ($(elapsed $((SECONDS - BEGUN)))), the slowest stage first"
  printf '%s\n' "${SUMMARY[@]}" | sort -s -t'	' -k1,1nr | cut -f2- | sed 's/^/  /'
  for id in "${!OUTCOME[@]}"; do
    if [ "${OUTCOME[$id]}" = failed ] && [ -s "$PRINTED/$id" ]; then failure_in "$id"; fi
  done
  rm -rf "$PRINTED"
  if ((failed || rc)); then
    say "Something failed."
    exit $((rc ? rc : 1))
  fi
  say "All passed."
}
# Before anything is built: a cluster that somebody has is not for this.
case $WHAT in e2e | soak | test | upgrade) choose_own_cluster ;; esac

trap finish EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# --- the stages --------------------------------------------------------------

# Every cargo here is run for the whole workspace, with the programs of it as arguments:
# dependencies are then compiled once (docs/decisions/0008-one-set-of-features.md).
lints() {
  lints_of_crates
  lints_of_the_rest
}
lints_of_crates() {
  stage fmt tools 5 "format (cargo fmt)" cargo fmt --all --check
  stage examples tools 0 "no examples in comments that nothing compiles" examples_in_comments
  stage dependencies tools 0 "crates of others: banned, licensed, unused (cargo deny, cargo shear)" dependency_lint
  [ "$WHAT" != lint ] || stage clippy tools 40 "clippy" cargo clippy --locked --workspace --all-targets -- -D warnings
  absent drift src/xtask "generated files" ||
    stage drift tools 20 "generated files are up to date (cargo xtask check)" cargo xtask check
}
lints_of_the_rest() {
  stage go-fmt tools 0 "format (gofmt)" go_format
  stage shell tools 0 "shell scripts (shellcheck)" shell_lint
  absent python-lint python "python package" ||
    stage python-lint tools 10 "python package (ruff, mypy --strict)" hack/python.sh lint
}
# The result store in a bucket is tried with servers that keep their promises about creates, by unit tests and a story. They
# take two to three minutes of one processor where they are not built yet: beside the compiler they take what it leaves.
s3_servers() {
  stage s3-servers tools 40 "versitygw and gofakes3, servers of S3 for the tests" nice -n 19 hack/s3-servers.sh
  if [ "${OUTCOME[s3-servers]:-}" = ok ]; then
    SKYWARD_S3_SERVERS=$(hack/s3-servers.sh)
    export SKYWARD_S3_SERVERS
  fi
}
tools_of_units() {
  stage sshd tools 0 "an OpenSSH server for the tests" openssh_server
  # The clients of AWS and S3 are tested with a third-party server, within the unit and Python tests.
  stage moto tools 5 "moto, an EC2 and S3 server for the tests" hack/moto.sh
  if [ "${OUTCOME[moto]:-}" = ok ]; then
    SKYWARD_MOTO=$(hack/moto.sh)
    export SKYWARD_MOTO
  fi
  # The simulators of the clouds are tested with the clients that the clouds publish.
  stage vendor-clients tools 10 "the clouds' own clients for the tests" hack/vendor-clients.sh
  if [ "${OUTCOME[vendor-clients]:-}" = ok ]; then
    SKYWARD_VENDOR_CLIENTS=$(hack/vendor-clients.sh)
    export SKYWARD_VENDOR_CLIENTS
  fi
  # The operator's own requests over REST pass a proxy that reads the clouds' descriptions.
  if [ -n "${SKYWARD_SPECS:-}" ] && command -v npm >/dev/null; then
    stage prism tools 5 "Prism, a validating proxy for the tests" hack/prism.sh
    if [ "${OUTCOME[prism]:-}" = ok ]; then
      SKYWARD_PRISM=$(hack/prism.sh)
      export SKYWARD_PRISM
    fi
  fi
}
units() {
  # Without uv the tests of what machines install print that they are skipped.
  absent uv python "uv for tests" || hack/python.sh tools || warn "there is no uv for the tests"
  # They wait for processes.
  beside python python_tests
  # All but the examples of comments, of which there are none (examples_in_comments).
  stage unit "tools sshd" 60 "unit and property tests" env SKYWARD_TEST_UV="$SKYWARD_CACHE/python-tools/bin/uv" nice -n 10 hack/unit-tests.sh
  # The program that they are part of needs a cluster to itself, and is no ordinary test.
  stage chaos tools 20 "rules and timetables of chaos" nice -n 10 \
    cargo test --locked --workspace --test chaos -- tests::
  join python
  # Its program is our crates once more, compiled with counters: nine minutes that `make test` has not (0018).
  [ "$WHAT" != test ] || return 0
  the_fuzzer
  # Seeds and mended inputs are replayed by the unit tests; this makes up new ones, the same each time.
  absent fuzz tests/fuzz "hostile bytes" ||
    stage fuzz fuzzer 5 "hostile bytes: a minute of libFuzzer for all targets together" env MINUTES=1 SEED=1 nice -n 10 hack/fuzz.sh
}
python_tests() { absent python python "python tests" || stage python tools 20 "python tests" nice -n 10 hack/python.sh test; }
the_fuzzer() {
  absent fuzzer tests/fuzz "build the fuzzer" ||
    stage fuzzer tools 30 "build the fuzzer: our crates once more, with counters" hack/fuzz.sh --build
}
# By clippy's compiler (hack/test-rustc.sh). All at once, since a cargo that compiles keeps others from starting what they have. cargo repeats the warnings of what it has.
tests_with_lints() {
  local targets
  for targets in "test --no-run" "test --no-run --test chaos --test upgrade" "build --bins"; do
    # shellcheck disable=SC2086 # words
    cargo $targets --locked --workspace 2>&1 | tee -a "$PRINTED/lints" || return
  done
  # Not cargo's own warnings, such as of a download that is tried again.
  ! grep -qE '^warning: .* generated [0-9]+ warnings?' "$PRINTED/lints" || die "clippy warns: 'make lint' shows the warnings alone"
}
simulated_machines() { stage cloudsim images 20 "simulated machines that are Pods" cargo test --locked --workspace --lib pods::live::; }
programs() { stage build tools 40 "build operator, plugin and agent" hack/build.sh; }
a_cluster() {
  [ -n "${OUTCOME[build]:-}" ] || programs
  [ -n "${OUTCOME[cluster]:-}" ] || stage cluster cluster-tools 0 "cluster up" bring_cluster
  stage images "build cluster" 0 "images" build_images
}
# The cluster comes up beside other stages. That it is new, and must go at the end, is known before it begins: what a stage
# beside the others finds out is lost when it is ended. In a subshell, so that a cluster that fails ends its stage alone.
cluster_beside() { stage cluster cluster-tools 0 "cluster up" in_subshell bring_cluster; }
in_subshell() { ("$@"); }
begin_cluster() {
  [ "${OUTCOME[cluster-tools]:-}" != ok ] || "$SKYWARD_ROOT/hack/cluster/cluster.sh" status >/dev/null 2>&1 || CLUSTER_IS_NEW=yes
  beside cluster cluster_beside
}
# story TITLE NEEDED THREADS PROGRAM [ARGUMENT...]: stories of a program, in the cluster of `needed`. Without cargo, which looks
# at each file of the workspace first, and waits for another cargo.
story() {
  local command runner=()
  read -ra command < <(sed -n "s/^$4 //p" "$PRINTED/programs") || true
  [ "$2" != apart ] || runner=("$PRINTED/inside-apart")
  stage "e2e-$1" "$2" 45 "end-to-end: $1" "${runner[@]}" "${command[@]}" "${@:5}" --test-threads="${TEST_THREADS:-$3}"
}
# One program after the other, since each installs the operator as it needs it. All but these two take it away, or need it
# untouched for minutes, and mostly wait: they have a cluster for themselves. The stories of e2e come last, with no unit tests beside
# them: most of them work more than they wait, and machines that get their packages while the controller is killed need their time.
stories() {
  # The kills need the controller to themselves for minutes. `alone::restored` does for its first minute, and then waits for longer than
  # other stories take.
  story alone stories 12 clouds alone::kills
  story clouds stories 18 clouds --skip alone::kills
  join units
  # Ten are at work at a time, beside those that wait for their turn to kill the controller (tests/e2e/main.rs).
  story e2e stories 16 e2e
  join apart
}
stories_apart() {
  local program
  stage apart stories 0 "a second cluster" in_subshell bring_apart
  for program in $(programs_apart); do story "$program" apart 12 "$program"; done
  end_apart
}
programs_apart() { sed 's/ .*//' "$PRINTED/programs" 2>/dev/null | grep -vx -e clouds -e e2e; }
before_the_cluster() {
  stage cluster-tools tools 30 "kubectl, helm and the parts of a cluster" hack/tools.sh
  stage machine tools 5 "what make asks of this machine, and what it leaves alone" tests/demo/machine.sh
  absent chart charts/skyward "chart" || stage chart cluster-tools 0 "chart, without a cluster" chart_lint
  absent release tests/release "release" ||
    stage release cluster-tools 5 "release, packed twice from stubs" tests/release/run.sh
  # The other image needs the operator; this one is Debian's packages.
  stage node tools 20 "node image" hack/images/node.sh
}
on_the_cluster() {
  a_cluster
  absent e2e tests/e2e "end-to-end tests" || {
    stage stories images 40 "programs of the end-to-end tests" hack/test-programs.sh --files "$PRINTED/programs" skyward-e2e
    BROUGHT_APART=yes
    beside apart stories_apart
  }
  # First, while nobody took our custom resources away: the garbage collector goes on believing
  # in them for a while, and would take Pods whose owners cannot be there.
  stage provider images 20 "container provider, without an operator" cargo test --locked --workspace --lib container::live::
  absent demo tests/demo "demo" ||
    stage demo images 20 "demo on a given cluster, through a registry" tests/demo/given.sh "$KUBECONFIG_TEST"
  # The machines of the simulated clouds are dialled at their Pods' own addresses. Neither these nor the custom resources need an
  # operator, and neither touches what the other has.
  beside cloudsim simulated_machines
  absent control-plane tests/control_plane "control-plane tests" ||
    stage control-plane images 20 "control-plane tests" hack/test-programs.sh skyward-control-plane-tests -- --test-threads=4
  join cloudsim
  [ ! -e tests/e2e ] || stories
  # The local clusters' API servers write down who asked for what.
  # shellcheck disable=SC2046 # words
  stage permissions "$(printf 'e2e-%s ' clouds e2e alone $(programs_apart))" 0 "permissions: what the chart grants is what was used" permissions
}

case $WHAT-${SKYWARD_THIRD:-} in
  *-) ;;
  test-* | unit-* | e2e-*) say "Third $SKYWARD_THIRD of what is repeated for each call, cloud and Python; make $WHAT THIRD=all runs all of it, and so does make soak." ;;
esac

# What is downloaded, and what needs neither cargo nor a cluster.
preparations() {
  tools_of_units
  before_the_cluster
}
needs=()
case $WHAT in lint | unit | fuzz) needs+=(--no-root) ;; esac
case $WHAT in lint | test) needs+=(--lint) ;; esac
stage tools "" 0 "what this machine must have" "$SKYWARD_ROOT/hack/check-tools.sh" "${needs[@]}"
if [ "${OUTCOME[tools]}" = ok ]; then c_compiler; fi
case $WHAT in
  lint) lints ;;
  unit)
    tools_of_units
    s3_servers
    units
    ;;
  fuzz)
    the_fuzzer
    stage fuzz fuzzer 0 "hostile bytes" hack/fuzz.sh
    ;;
  e2e)
    before_the_cluster
    s3_servers
    on_the_cluster
    ;;
  soak)
    if [ "${ONLY:-}" = simulation ]; then
      stage soak tools 0 "campaign" hack/soak.sh
    else
      stage cluster-tools tools 30 "kubectl, helm and the parts of a cluster" hack/tools.sh
      a_cluster
      stage soak images 0 "campaign" hack/soak.sh
    fi
    ;;
  upgrade)
    stage before tools 0 "the release before" release_before
    stage cluster-tools before 30 "kubectl, helm and the parts of a cluster" hack/tools.sh
    a_cluster
    stage load images 5 "load the image of the release before" hack/cluster/cluster.sh load "${FROM:-}"/operator-*.oci.tar
    stage upgrade load 20 "end-to-end: upgrade" cargo test --locked --workspace --test upgrade
    ;;
  test)
    RUSTC_WORKSPACE_WRAPPER=$SKYWARD_ROOT/hack/test-rustc.sh
    # What cargo keeps for the next change costs a fifth of each compilation.
    export RUSTC_WORKSPACE_WRAPPER CARGO_INCREMENTAL=0
    # Downloads wait for others, and a compiler seldom has work for all processors.
    say
    say "  Tools and the tests without a cluster run beside the lints; what they say stands after these."
    beside s3-servers s3_servers
    beside preparations preparations
    beside lints lints_of_the_rest
    lints_of_crates
    join lints
    join preparations
    # An idle cluster takes some of the processors: it is started before the compiler only where programs are there, and so most is compiled.
    [ ! -x "$SKYWARD_TARGET_BIN/skyward" ] || begin_cluster
    stage tests tools 0 "clippy, and build the tests" in_subshell tests_with_lints
    join s3-servers
    # Tests on a cluster mostly wait.
    if [ "${OUTCOME[tests]:-}" = ok ]; then
      say
      say "  Unit tests run beside what follows; what they say stands before the stories of e2e."
      beside units units
    fi
    [ -n "${BESIDE[cluster]:-}" ] || begin_cluster
    programs
    join cluster
    on_the_cluster
    join units
    ;;
  *) die "hack/test.sh does not know '$WHAT'; it can be test, lint, unit, e2e, soak, fuzz or upgrade" ;;
esac
