#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Checks the models with spin and compares the edges they take with lib/grant/state.c.
# One line per check. Exits 77 (skipped) without spin, 1 if any check fails.
set -u
export LC_ALL=C

here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
cc=${CC:-gcc}
megabytes=1900

command -v spin >/dev/null 2>&1 || {
	echo "skip: spin is not installed"
	exit 77
}
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
trap 'exit 1' INT TERM
cd "$work" || exit 1

failed=0
report() { # outcome, name, detail
	printf '%-4s %s%s\n' "$1" "$2" "${3:+ ($3)}"
	[ "$1" = ok ] || failed=1
}

# build MODEL SPIN-FLAGS CC-FLAGS: makes ./pan
build() {
	rm -f pan pan.* ./*.trail
	# shellcheck disable=SC2086
	spin $2 -a "$here/$1" >spin.out 2>&1 || return 1
	# shellcheck disable=SC2086
	$cc -w -DMEMLIM=$megabytes $3 -o pan pan.c >cc.out 2>&1
}

# verdict: what pan.out says: holds, broken (an assertion or a promise of liveness), or other
verdict() {
	if grep -qE 'assertion violated|acceptance cycle' pan.out; then
		echo broken
	elif grep -q 'errors: 0' pan.out &&
		! grep -qE 'max search depth too small|Search not completed|out of memory' pan.out; then
		echo holds
	else
		echo other
	fi
}

# check EXPECTED NAME MODEL SPIN-FLAGS CC-FLAGS PAN-FLAGS
check() {
	if ! build "$3" "$4" "$5"; then
		cat spin.out cc.out 2>/dev/null
		report FAIL "$2" "does not build"
		return
	fi
	# shellcheck disable=SC2086
	./pan -m1000000 $6 >pan.out 2>&1
	got=$(verdict)
	states=$(sed -n 's/^ *\([0-9.e+]*\) states, stored.*/\1/p' pan.out)
	if [ "$got" = "$1" ]; then
		report ok "$2" "$got, $states states"
	else
		tail -n 40 pan.out
		report FAIL "$2" "$got, expected $1"
	fi
}

safety="-DSAFETY -DNOCLAIM"
liveness="-DNFAIR=3"
fast=-O2 # a broken rule shows early: there the compiler would take longer than the search

check holds "grant: no byte reused under a copy, two generations" grant.pml "" "$safety $fast" ""
grep '^edge ' pan.out | sort >edges.model
check holds "grant: two operations over the same blocks" grant.pml \
	"-DRECORDS=2 -DGENERATIONS=1" "$safety $fast" ""
check holds "grant: every operation ends" grant.pml \
	"-DGENERATIONS=1" "$liveness $fast" "-a -f -N answered"
check holds "grant: every owner is released or quarantined" grant.pml \
	"-DGENERATIONS=1" "$liveness $fast" "-a -f -N resolved"
for rule in RELEASE_ON_HANGUP RELEASE_ON_EXIT RELEASE_ON_TTL REVOKE_WITHOUT_CAS SAME_GENERATION \
	BANK_WITHOUT_CONSUMED TWO_MANAGER_HANDS; do
	check broken "grant: $rule is caught" grant.pml "-D$rule" "$safety" ""
done
check broken "grant: UNCOUNTED_PINS is caught" grant.pml \
	"-DUNCOUNTED_PINS -DRECORDS=2 -DGENERATIONS=1" "$safety" ""
check broken "grant: NO_CLOSE_ON_LOSS is caught" grant.pml \
	"-DNO_CLOSE_ON_LOSS -DGENERATIONS=1" "$liveness" "-a -f -N answered"
check broken "grant: NO_QUARANTINE is caught" grant.pml \
	"-DNO_QUARANTINE -DGENERATIONS=1" "$liveness" "-a -f -N resolved"

check holds "doorbell: no lost wakeup" doorbell.pml "" "-DSAFETY" ""
for rule in NO_RECHECK WEAK_RINGER WEAK_SLEEPER BIT_FIRST; do
	check broken "doorbell: $rule is caught" doorbell.pml "-D$rule" "-DSAFETY" ""
done

# The edges that the model took are the edges of the C table, mover by mover.
if $cc -std=gnu11 -I"$root/lib" -I"$root/include" -o edges "$here/edges.c" \
	"$root/lib/grant/state.c" && ./edges | sort >edges.code && [ -s edges.code ]; then
	if diff edges.code edges.model; then
		report ok "table: lib/grant/state.c and the model have the same edges" \
			"$(wc -l <edges.code) edges"
	else
		report FAIL "table: lib/grant/state.c and the model differ"
	fi
	sed 's/edge E Granted Active/edge M Granted Active/' edges.code >edges.other
	if cmp -s edges.other edges.model; then
		report FAIL "table: another mover goes unnoticed"
	else
		report ok "table: another mover is noticed"
	fi
else
	report FAIL "table: lib/grant/state.c does not build"
fi
exit $failed
