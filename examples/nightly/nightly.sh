#!/bin/sh
# One night: a run in a folder of its own, what has changed since the night before, the list to read, and old runs
# removed. All paths are relative to the folder from which it starts, which has conf/experiment/nightly.yaml. The same
# night again goes on where it was stopped.
#
#   nightly.sh [NIGHT] [KEY=VALUE ...]      NIGHT is 2026-11-17, by default today
#
# Status: that of the run (0; 2 wrong input; 3 finished, and a check of fail_on holds; 1 or 128 + n: try again).
set -u
night=$(date +%F)
case "${1:-}" in 20??-??-??) night=$1 && shift ;; esac
run=runs/$night
last=
for finished in runs/20??-??-??/stages.json; do # the last night before this one; cases keep their ids, and verdicts count
    [ -f "$finished" ] && [ "$(dirname "$finished")" \< "$run" ] && last=$(dirname "$finished")
done

hcm-scale run experiment=nightly run_dir="$run" log=json ${last:+"since=$last"} "$@"
status=$?
if [ $status -ne 0 ] && [ $status -ne 3 ]; then exit $status; fi

if [ -n "$last" ]; then hcm-scale diff "$last" "$run" >"$run.changes.txt" || exit; fi
hcm-scale export "$run" "$run.csv" --flagged || exit
if [ "$(wc -l <"$run.csv")" -le 1 ]; then # nothing stands out: the head of the list is worth a look all the same
    hcm-scale export "$run" "$run.csv" --top 100 || exit
fi
hcm-scale clean runs --keep 30d --yes || exit
exit $status
