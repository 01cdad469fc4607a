/* SPDX-License-Identifier: Apache-2.0 */
/*
 * [B] The life of operation records: engine, Manager, and everything that can go wrong between
 * them. Run by run.sh; states and edges are those of lib/wire/wire.h and lib/grant/state.c.
 *
 * What is checked
 *   - a block's bytes change hands (version) only when no copy over it runs or can still start;
 *   - nobody reads or writes a record of another generation; a plan part is not overwritten
 *     before it was copied; no copy starts after the operation's final result;
 *   - one final result per operation; every operation ends; every owner is released or
 *     quarantined (under weak fairness: nobody is suspended for ever).
 *
 * With one record, used GENERATIONS times, a grant has two parts and every edge is taken. With
 * two, each grant holds both blocks and copies one, and only the way of grants is taken.
 *
 * What is left out: the bells (doorbell.pml), since a lost hint only delays; both loops of the
 * Manager re-read the table. A new Manager has new arenas, so its restart is the old one's death.
 *
 * Each of these, defined, breaks one rule, and spin must find it:
 *   RELEASE_ON_HANGUP       the socket closed, so the copies stopped
 *   RELEASE_ON_EXIT         the process is gone, so the copies stopped
 *   RELEASE_ON_TTL          the lease ran out, so the copies stopped
 *   REVOKE_WITHOUT_CAS      look at the state, then store Revoked
 *   SAME_GENERATION         an edge into Free does not raise the generation
 *   BANK_WITHOUT_CONSUMED   the next part goes into the bank without waiting for consumed
 *   TWO_MANAGER_HANDS       dispatcher and retire loop handle one operation at once
 *   UNCOUNTED_PINS          (two records) the first release of a shared block frees it
 *   NO_QUARANTINE           nobody looks after the owner of a record that went to Unknown
 *   NO_CLOSE_ON_LOSS        an engine waits for parts of a Manager that is gone
 */
#ifndef RECORDS
#define RECORDS 1
#endif
#ifndef GENERATIONS
#define GENERATIONS 2
#endif
#define BLOCKS 2
/* The bank of a record holds one part. */
#if RECORDS == 1
#define PARTS 2
#define BLOCK(r, p) (p)
#define COARSE
#else
#define PARTS 1
#define BLOCK(r, p) (r)
#define COARSE atomic /* steps that matter to one record only, taken as one */
#endif
#define COPY(r, p) ((r) * PARTS + (p))

mtype:state = { Free, Reserved, Submitted, Preparing, Done, Managed, Granted, Revoked, Active,
		Drained, Reaped, Unknown };
mtype:owner = { None, Held, Quarantined };
mtype:copy = { Idle, Running, Ended };

/* The record: what both sides see. (state, gen) is one word. */
mtype:state state[RECORDS] = Free;
byte gen[RECORDS];
byte offered[RECORDS], claimed[RECORDS];
bool closed[RECORDS];
byte drained[RECORDS], consumed[RECORDS];
bool cancel[RECORDS];
/* The bank: which part it holds and the version of the block that the part names. */
byte bank_part[RECORDS], bank_version[RECORDS];

/* The engine's own: which operation is in the record; is it unanswered; admission has ended. */
byte operation[RECORDS];
bool pending[RECORDS];
bool closing;

/* The Manager's own: the owner, the generation it was installed for, parts put into the bank. */
mtype:owner owner[RECORDS] = None;
byte owner_gen[RECORDS], owner_parts[RECORDS];
bool hands; /* the session's lock */

/* Memory: a version per block, raised when the bytes get another use. Copies outlive engines. */
byte pins[BLOCKS], version[BLOCKS];
mtype:copy copy[RECORDS * PARTS] = Idle;
byte copy_version[RECORDS * PARTS];

bool lost, expired, engine_dead, manager_dead;

/* One compare-and-swap. Every edge that the model takes is printed once, for run.sh. */
#ifdef SAME_GENERATION
#define RAISE(r)
#else
#define RAISE(r) gen[r] = gen[r] + 1
#endif
#define MOVE(side, r, g, from, to, more) \
	d_step { \
		if \
		:: state[r] == from && gen[r] == g -> \
			state[r] = to; won = true; more; \
			c_code { static int once; \
				 if (!once) { once = 1; printf("edge " side " " #from " " #to "\n"); } } \
		:: else -> won = false \
		fi \
	}
#define E_MOVE(r, g, from, to) MOVE("E", r, g, from, to, skip)
#define E_FREE(r, g, from) MOVE("E", r, g, from, Free, RAISE(r))
#define M_MOVE(r, g, from, to) MOVE("M", r, g, from, to, skip)

#ifdef REVOKE_WITHOUT_CAS
#define REVOKE(r, g) state[r] == Granted; state[r] = Revoked; won = true
#else
#define REVOKE(r, g) M_MOVE(r, g, Granted, Revoked)
#endif
#ifdef UNCOUNTED_PINS
#define UNPINNED(n) 0
#else
#define UNPINNED(n) ((n) - 1)
#endif
#ifdef TWO_MANAGER_HANDS
#define FREE_HANDS true
#else
#define FREE_HANDS (!hands)
#endif
#ifdef BANK_WITHOUT_CONSUMED
#define BANK_FREE(r) true
#else
#define BANK_FREE(r) (consumed[r] == owner_parts[r])
#endif

/* A local that is not read again, set to one value: fewer states that differ in nothing. */
#define FORGET(g) d_step { g = 0; won = false }

/* The one final result. */
inline end_operation(r)
{
	d_step { assert(pending[r]); pending[r] = false }
}

/* The Manager writes status and text: the record must still be that operation's. */
inline write_result(r, g)
{
	assert(gen[r] == g && state[r] != Free && state[r] != Reserved)
}

inline pin(r, g)
{
	d_step {
		assert(owner[r] == None);
		pins[0] = pins[0] + 1; pins[1] = pins[1] + 1;
		owner[r] = Held; owner_gen[r] = g; owner_parts[r] = 0
	}
}

/* Unpinned bytes get another use at once: the worst an evictor can do. */
inline unpin_block(b)
{
	pins[b] = UNPINNED(pins[b]);
	if
	:: pins[b] == 0 ->
		assert(copy[b] != Running);
		version[b] = version[b] + 1
	:: else
	fi
}

inline release(r)
{
	d_step {
		assert(owner[r] == Held);
		unpin_block(0); unpin_block(1);
		owner[r] = None; owner_gen[r] = 0; owner_parts[r] = 0
	}
}

inline put_part(r)
{
	d_step { bank_part[r] = owner_parts[r]; bank_version[r] = version[BLOCK(r, owner_parts[r])] };
	d_step {
		if
		:: closed[r] -> owner_parts[r] = PARTS
		:: else -> offered[r] = offered[r] + 1; owner_parts[r] = owner_parts[r] + 1
		fi
	}
}

/* [E] A caller's thread: reserve, submit, wait, free; then the same record again. */
proctype Submitter(byte r)
{
	bool won;
	byte n, g;

	{
		do
		:: n < GENERATIONS && !closing ->
			d_step { n++; g = gen[r] };
			COARSE { E_MOVE(r, g, Free, Reserved); assert(won) };
			if
#if RECORDS == 1
			:: E_FREE(r, g, Reserved); assert(won)
#endif
			:: COARSE {
				d_step {
					offered[r] = 0; claimed[r] = 0; closed[r] = false;
					drained[r] = 0; consumed[r] = 0; cancel[r] = false;
					operation[r] = n; pending[r] = true
				};
				E_MOVE(r, g, Reserved, Submitted);
				assert(won)
			   };
			   if
			   :: state[r] == Done || state[r] == Revoked -> end_operation(r)
			   :: !pending[r]
			   :: atomic { lost -> closing = true };
				/* With the worker kept from claiming, whoever has not claimed ends. */
				if
				:: atomic { pending[r] && state[r] != Active && state[r] != Drained &&
					    state[r] != Reaped && state[r] != Unknown ->
					    end_operation(r) }
				:: !pending[r]
				fi
			   fi;
#if RECORDS > 1
			   break;
#endif
			   if
			   :: state[r] == Done -> E_FREE(r, g, Done); assert(won)
			   :: state[r] == Revoked -> E_FREE(r, g, Revoked); assert(won)
			   :: state[r] == Reaped -> E_FREE(r, g, Reaped); assert(won)
			   :: closing || lost || state[r] == Unknown -> break
			   fi
			fi;
			FORGET(g)
		:: else -> break
		od
	} unless { engine_dead }
}

/* [E] The worker: claim, copy the plan, submit, poll, drain. */
proctype Worker(byte r)
{
	bool won;
	byte g, p, n, v;

	{
end:		do
		:: atomic { state[r] == Granted && !closing -> g = gen[r]; n = operation[r] };
			atomic {
				if
				:: closing -> won = false
				:: else -> E_MOVE(r, g, Granted, Active)
				fi
			};
			if
			:: won ->
				assert(operation[r] == n);
				n = 0;
				do
				:: d_step { !closed[r] && claimed[r] < offered[r] ->
					    p = claimed[r]; claimed[r] = claimed[r] + 1 };
					COARSE {
						v = bank_version[r];
						assert(bank_part[r] == p);
						consumed[r] = consumed[r] + 1
					};
					if
					:: d_step {
						assert(pending[r] && version[BLOCK(r, p)] == v);
						copy_version[COPY(r, p)] = v; copy[COPY(r, p)] = Running;
						p = 0; v = 0
					   }
#if RECORDS == 1
					:: d_step { drained[r] = drained[r] + 1; p = 0; v = 0 }
						closed[r] = true /* submission failed */
#endif
					fi
				:: d_step { copy[COPY(r, 0)] == Ended ->
					    copy[COPY(r, 0)] = Idle; drained[r] = drained[r] + 1 }
#if PARTS > 1
				:: d_step { copy[COPY(r, 1)] == Ended ->
					    copy[COPY(r, 1)] = Idle; drained[r] = drained[r] + 1 }
#endif
				:: cancel[r] && !closed[r] -> closed[r] = true
#ifndef NO_CLOSE_ON_LOSS
				:: lost && !closed[r] -> closed[r] = true
#endif
				:: drained[r] == claimed[r] && (closed[r] || drained[r] == PARTS) ->
					closed[r] = true;
					E_MOVE(r, g, Active, Drained);
					assert(won);
					end_operation(r);
					FORGET(g);
					break
#if RECORDS == 1
				:: drained[r] < claimed[r] ->
					E_MOVE(r, g, Active, Unknown);
					assert(won);
					closing = true;
					end_operation(r);
					FORGET(g);
					goto end
#endif
				od
			:: else -> d_step { g = 0; n = 0 }
			fi
		od
	} unless { engine_dead }
}

/* A copy in flight; copy i is over block i, with one record or two. It ends when it ends, whoever is alive. */
proctype Dma(byte i)
{
end:	do
	:: d_step { copy[i] == Running ->
		    assert(version[i] == copy_version[i]);
		    copy[i] = Ended; copy_version[i] = 0 }
	od
}

/* [M] Submitted → an answer, the Manager's own executor, or a grant; and taking a grant back. */
proctype Dispatcher(byte r)
{
	bool won;
	byte g;

	{
end:		do
		:: atomic { FREE_HANDS && state[r] == Submitted -> hands = true; g = gen[r] };
			COARSE { M_MOVE(r, g, Submitted, Preparing); assert(won) };
			if
#if RECORDS == 1
			:: skip
			:: pin(r, g);
				M_MOVE(r, g, Preparing, Managed);
				release(r) /* its own copies ran and drained */
#endif
			:: COARSE { pin(r, g); put_part(r); M_MOVE(r, g, Preparing, Granted) }
			fi;
			assert(won);
			if
			:: state[r] == Preparing -> write_result(r, g); M_MOVE(r, g, Preparing, Done)
			:: state[r] == Managed -> write_result(r, g); M_MOVE(r, g, Managed, Done)
			:: else
			fi;
			d_step { hands = false; g = 0; won = false }
		:: atomic { FREE_HANDS && owner[r] == Held && state[r] == Granted &&
			    (cancel[r] || expired || lost) ->
			    hands = true; g = owner_gen[r] };
			write_result(r, g);
			REVOKE(r, g);
			if
			:: won -> release(r)
			:: else
			fi;
			d_step { hands = false; g = 0; won = false }
		od
	} unless { manager_dead }
}

/* [M] The retire loop: offer the next part, reap, quarantine. */
proctype Retire(byte r)
{
	bool won;
	byte g;

	{
end:		do
		:: atomic { FREE_HANDS && owner[r] == Held && state[r] == Drained ->
			    hands = true; g = owner_gen[r] };
			COARSE {
				assert(gen[r] == g && drained[r] == claimed[r]);
				assert(consumed[r] <= claimed[r] && claimed[r] <= offered[r]);
				release(r);
				write_result(r, g);
				M_MOVE(r, g, Drained, Reaped);
				assert(won);
				d_step { hands = false; g = 0; won = false }
			}
		:: atomic { FREE_HANDS && owner[r] == Held && owner_parts[r] < PARTS &&
			    (state[r] == Granted || state[r] == Active) && BANK_FREE(r) ->
			    hands = true };
			put_part(r);
			hands = false
#ifndef NO_QUARANTINE
		:: d_step { FREE_HANDS && owner[r] == Held && state[r] == Unknown ->
			    owner[r] = Quarantined }
#endif
#ifdef RELEASE_ON_HANGUP
		:: d_step { FREE_HANDS && owner[r] == Held && state[r] == Active && lost ->
			    hands = true };
			release(r);
			hands = false
#endif
#ifdef RELEASE_ON_EXIT
		:: d_step { FREE_HANDS && owner[r] == Held && state[r] == Active && engine_dead ->
			    hands = true };
			release(r);
			hands = false
#else
		/* Hung up, but alive: its copies go on and end in Drained. Gone: nobody will say. */
		:: d_step { FREE_HANDS && owner[r] == Held && state[r] == Active && engine_dead ->
			    owner[r] = Quarantined }
#endif
#ifdef RELEASE_ON_TTL
		:: d_step { FREE_HANDS && owner[r] == Held && state[r] == Active && expired ->
			    hands = true };
			release(r);
			hands = false
#endif
		od
	} unless { manager_dead }
}

/* Whatever may happen at any moment, each at most once, or never. */
proctype World()
{
	do
	:: !lost -> lost = true
	:: !engine_dead -> d_step { engine_dead = true; lost = true }
#if RECORDS == 1
	:: d_step { !cancel[0] && pending[0] -> cancel[0] = true }
	:: d_step { !expired && owner[0] == Held -> expired = true }
	:: !manager_dead -> d_step { manager_dead = true; lost = true }
#endif
	:: break
	od
}

init {
	byte r;

	atomic {
		for (r : 0 .. RECORDS - 1) {
			run Submitter(r); run Worker(r); run Dispatcher(r); run Retire(r)
		}
		run Dma(0); run Dma(1); run World()
	}
}

ltl answered { [] ((pending[0] && !engine_dead) -> <> (!pending[0] || engine_dead)) }
ltl resolved { [] ((owner[0] == Held && !manager_dead) -> <> (owner[0] != Held || manager_dead)) }
