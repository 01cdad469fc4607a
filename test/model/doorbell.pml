/* SPDX-License-Identifier: Apache-2.0 */
/*
 * [B] The bell between two processes: no lost wakeup. Run by run.sh; the code is
 * lib/wire/channel.c, the struct okw_doorbell in lib/wire/wire.h, the argument G1 in
 * doc/memory-ordering.md.
 *
 * Two ringers (two words of the bitset, one listener), each with NEWS changes to announce. The
 * listener handles what it finds, then declares sleep, looks again, and sleeps on the eventfd.
 * Whoever sleeps with a bit set and no signal under way has lost a wakeup.
 *
 * Each of these, defined, breaks one rule, and spin must find it:
 *   NO_RECHECK    the listener sleeps without a look after declaring it
 *   WEAK_RINGER   the store of the bit may pass the load of asleep (release and acquire only)
 *   WEAK_SLEEPER  the store of asleep may pass the load of the bits
 *   BIT_FIRST     the bit is set before the state it announces
 */
#define NEWS 2

byte announced[2]; /* the state: what the record says */
byte handled[2];   /* what the listener has acted on */
bool dirty[2], asleep, signalled;
byte ringers;

#define PENDING (dirty[0] || dirty[1])

proctype Ringer(byte w)
{
	byte n;
	bool listener_sleeps;

	do
	:: n < NEWS ->
		n++;
#ifdef BIT_FIRST
		dirty[w] = true;
		listener_sleeps = asleep;
		announced[w] = n;
#else
		announced[w] = n;
#ifdef WEAK_RINGER
		listener_sleeps = asleep;
		dirty[w] = true;
#else
		dirty[w] = true;
		listener_sleeps = asleep;
#endif
#endif
		if
		:: listener_sleeps -> signalled = true
		:: else
		fi
	:: else -> break
	od;
	ringers = ringers - 1
}

inline take(w)
{
	if
	:: d_step { dirty[w] -> dirty[w] = false }; handled[w] = announced[w]
	:: !dirty[w]
	fi
}

proctype Listener()
{
	bool work;

end:	do
	:: take(0);
		take(1);
#ifdef WEAK_SLEEPER
		work = PENDING;
		asleep = true;
#else
		asleep = true;
#ifdef NO_RECHECK
		work = false;
#else
		work = PENDING;
#endif
#endif
		if
		:: work
		:: else ->
endsleep:		d_step { signalled -> signalled = false }
		fi;
		asleep = false
	od
}

/* Nothing can move any more: then everything has been handled. */
proctype Monitor()
{
end:	timeout -> assert(ringers == 0 && handled[0] == NEWS && handled[1] == NEWS)
}

init {
	atomic {
		ringers = 2;
		run Ringer(0); run Ringer(1); run Listener(); run Monitor()
	}
}
