# shellcheck shell=bash
# For the scripts in this folder: runs steps, and prints what each does, how long it took and, if it fails, why.

# Every step's output is kept here; that of a failed step is also shown.
logs=${logs:-$(mktemp -d)}
steps_passed=0
steps_failed=()
script_started=$SECONDS

say() { printf '%s\n' "$*"; }

# step WHAT COMMAND...: runs the command quietly. Returns its exit code.
step() {
  local what=$1 log started=$SECONDS code=0
  shift
  log="$logs/$(tr -cs 'a-zA-Z0-9' '-' <<< "$what").log"
  printf '%-58s ' "$what"
  "$@" > "$log" 2>&1 || code=$?
  if ((code == 0)); then
    printf 'ok  %4d s\n' $((SECONDS - started))
    steps_passed=$((steps_passed + 1))
  else
    printf 'FAILED (exit code %d) after %d s; the end of what it printed:\n' "$code" $((SECONDS - started))
    tail -n "${STEP_TAIL:-60}" "$log"
    steps_failed+=("$what")
  fi
  step_log=$log
  return "$code"
}

took() { say "in all $((SECONDS - script_started)) s"; }
