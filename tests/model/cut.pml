/* The cut, the commit of an epoch and the fenced rollback, small enough to be explored completely.
 *
 * N participants with FIFO channels, and one leader whose decisions are entries of the ledger: what the leader holds
 * beyond the ledger is lost when the leader changes.  Tokens are the application: they are sent, never made or lost, so
 * that every sealed cut and every quiescent state must hold TOTAL.
 *
 * What may happen at any moment, each as often as its budget allows: a token is sent; an epoch starts; a started epoch is
 * aborted (deadline); a participant crashes (memory, what was on its way to it and its incarnation number are lost, its
 * orders are not: they reach its next session); a rollback is ordered while everybody is alive (false suspicion: the old
 * incarnation goes on as a zombie until its restore order arrives); a further fault during a restore; a change of leader
 * (reports on their way are lost, the deposed leader may still write a manifest that it had under way); a participant
 * reports an epoch again with other bytes; a participant joins.
 *
 * Every budget is finite, so that each maximal run ends; process Quiescence judges that last state, which turns the
 * liveness claims (L1: no epoch hangs, L3: everybody is restored) into assertions.
 *
 * Assertions carry the names of the invariants: HOLDS(I9, ...) fails as "assertion violated (I9||...)".
 *
 * -D switches: budgets SENDS EPOCHS ABORTS FAULTS FAILOVERS AGAIN, sizes N TOTAL, topologies LINE CHAIN (else everybody to
 * everybody), ALLSTART (start orders to all members, else to participant 0), JOIN (participant N-1 joins while the others
 * run), and mutations M_*: each breaks one rule and must be caught (check.py mutants).
 */
#ifndef N
#define N 3
#endif
#ifndef TOTAL
#define TOTAL 2
#endif
#ifndef SENDS
#define SENDS 1     /* per participant */
#endif
#ifndef EPOCHS
#define EPOCHS 1
#endif
#ifndef ABORTS
#define ABORTS 0
#endif
#ifndef FAULTS
#define FAULTS 0    /* crashes and ordered rollbacks; incarnations run 1 .. FAULTS+1 */
#endif
#ifndef FAILOVERS
#define FAILOVERS 0
#endif
#ifndef AGAIN
#define AGAIN 0     /* reports repeated with other bytes */
#endif
#if defined(JOIN) && (FAULTS > 0 || FAILOVERS > 0)
#error "JOIN is modelled without faults"
#endif

#if defined(LINE)   /* P0 - P1 - P2 in both directions */
#define LINK(a,b) ((a) == (b)+1 || (b) == (a)+1)
#elif defined(CHAIN) /* P0 -> P1 -> P2: not strongly connected */
#define LINK(a,b) ((b) == (a)+1)
#else
#define LINK(a,b) ((a) != (b))
#endif
#define CH(a,b)  ((a)*N+(b))
#define BIT(a)   (1<<(a))
#define ALL      (BIT(N)-1)
#define RIGHT(a) (((a)+1)%N)
#define LEFT(a)  (((a)+N-1)%N)
#define ACK 255     /* in a report: "restored" or "topology accepted" instead of an epoch */

/* never assigned, so 0: each stands in the text of its assertions */
hidden byte I1, I2, I5, I7, I9, I10, I11, I22, I23, I24, L1, L3;
#define HOLDS(name, condition) assert(name || (condition))

/* Rare states: -DREACH=n must find a run that gets there, or the model checks less than it says (check.py probes). */
#ifdef REACH
#define PROBE(n) assert(n != REACH)
#else
#define PROBE(n) skip
#endif
#define MARKER_BEFORE_ORDER 1
#define TOKEN_RECORDED      2
#define RESTORED_IN_FLIGHT  3
#define ZOMBIE_DROPPED      4
#define FUTURE_WAITS        5
#define DEPOSED_PUTS_LATE   6
#define DEPOSED_PUTS_FIRST  7
#define FAULT_WHILE_SEALED  8
#define REPORTED_TWICE      9
#define JOINER_IN_CUT       10
#define EVERYTHING          11

mtype = { TOKEN, MARKER, START, RESTORE, TOPOLOGY };
mtype = { IDLE, STARTED, SEALED, FENCING, RESTORING, JOINING };

/* A channel's items: the incarnation first, so that a receiver can look at the head cheaply; last the epoch of a marker, or
   (ghost) the newest epoch that the sender had recorded, as Lai and Yang's colour. */
chan channel[N*N] = [6] of { byte, mtype, byte };
/* Orders: kind, incarnation, epoch, and the session that they are for.  They survive a crash of who they are for. */
chan orders[N]    = [6] of { mtype, byte, byte, byte };
/* Reports: who, incarnation, epoch or ACK, and which bytes (0, or 1 in a repeated one). */
chan reports      = [3*N] of { byte, byte, byte, byte };

/* participants (global, so that assertions see them) */
bool up[N];  byte inc[N];  byte tokens[N];
byte cutEpoch[N];   /* epoch recorded last */
byte open[N];       /* channels still being recorded, as bits */
byte cutTokens[N];  /* recorded local state */
byte cutChannel[N*N];
byte session[N];    /* a new one after each crash */
/* object store: local snapshots, then what the newest sealed epoch names, then manifests by epoch (0: absent) */
byte objEpoch[N];   byte objTokens[N];  byte objChannel[N*N];
byte manTokens[N];  byte manChannel[N*N];
byte manifest[EPOCHS+1];
/* ledger */
mtype phase = IDLE;  byte gInc = 1;  byte gEpoch = 0;  byte committed = 0;
byte reported = 0;   /* by whom, as bits; in RESTORING and JOINING: who has acknowledged */
byte versions = 0;   /* which bytes each report named, as bits */
byte sealed = 0;     /* digest of the sealed manifest */
byte known[N];       /* the session of each participant, as registered */
byte fence = 1;      /* at the sinks of effects and the stores */
byte faults = 0;  byte handled = 0;  byte failovers = 0;  byte aborts = 0;  byte again = 0;
byte oldEpoch = 0;  byte oldDigest = 0;     /* a manifest that a deposed leader has under way */
/* ghosts */
byte newest = 1;     /* highest incarnation that anybody has entered */
byte entered[N];     /* highest incarnation that any session of this participant has entered */
byte gone = 0;       /* aborted epochs, as bits */
byte wrong = 0;      /* this epoch's cut: 1 an orphan, 2 a channel state that is not what was in flight */

#ifdef JOIN
bool told[N];        /* the participant has the topology with N members */
byte members = ALL & ~BIT(N-1);      /* of the ledger's newest topology, as bits */
byte atStart = 0;    /* members of the open epoch, frozen by the entry that starts it */
#define KNOWS(i,x)   ((x) < N-1 || told[i])
#define MEMBERS      members
#define FROZEN       atStart
#else
#define KNOWS(i,x)   true
#define MEMBERS      ALL
#define FROZEN       ALL
#endif
#define OUT(i,x)     (LINK(i,x) && KNOWS(i,i) && KNOWS(i,x))
#define IN(i,x)      (LINK(x,i) && KNOWS(i,i) && KNOWS(i,x))

#define FUTURE(c,k) ( ((k)<1 && channel[c]?[1,_,_]) || ((k)<2 && channel[c]?[2,_,_]) || ((k)<3 && channel[c]?[3,_,_]) )
#ifdef M_NOPARK        /* a message of a newer incarnation is taken at once */
#define READY(x,i) (up[i] && nempty(channel[CH(x,i)]))
#else
#define READY(x,i) (up[i] && nempty(channel[CH(x,i)]) && IN(i,x) && !FUTURE(CH(x,i),inc[i]))
#endif

inline markers(i, e) {
    x = 0;
    do :: x < N -> if :: OUT(i,x) -> channel[CH(i,x)]!inc[i],MARKER,e :: else fi; x++ :: else -> break od;
    x = 0
}

inline record(i, e, from) {          /* from == N: by a start order, no channel is closed yet */
    cutEpoch[i] = e; cutTokens[i] = tokens[i];
    x = 0; open[i] = 0;
    do :: x < N -> cutChannel[CH(x,i)] = 0; if :: IN(i,x) -> open[i] = open[i] | BIT(x) :: else fi; x++ :: else -> break od;
    if :: from < N -> open[i] = open[i] & ~BIT(from) :: else fi;
#ifdef M_LATEMARK                     /* markers leave later, sends may overtake them */
    owe = 1; x = 0
#else
    markers(i, e)
#endif
}

inline complete(i) {                 /* all channels are closed: upload, then report */
    if
#ifdef M_EARLY                        /* does not wait for the last channel */
    :: cutEpoch[i] != 0 && (open[i] == 0 || open[i] == 1 || open[i] == 2 || open[i] == 4) && objEpoch[i] != cutEpoch[i] ->
#else
    :: cutEpoch[i] != 0 && open[i] == 0 && objEpoch[i] != cutEpoch[i] ->
#endif
        objEpoch[i] = cutEpoch[i]; objTokens[i] = cutTokens[i]; cutTokens[i] = 0;
        x = 0; do :: x < N -> objChannel[CH(x,i)] = cutChannel[CH(x,i)]; cutChannel[CH(x,i)] = 0; x++ :: else -> break od; x = 0;
        reports!!i,inc[i],cutEpoch[i],0
    :: else
    fi
}

/* Each step of the application also acts on the outside world, whose sink compares incarnations with its fence. */
inline effect(i) {
    if :: inc[i] >= fence -> HOLDS(I22, inc[i] >= newest) :: else fi
}

proctype Participant(byte i) {
    byte j, x, mi, me, ms; mtype k; byte left = SENDS;
#ifdef M_LATEMARK
    bool owe = 0;
#endif
end:
    do
    :: atomic { up[i] && tokens[i] > 0 && left > 0 && (OUT(i,RIGHT(i)) || OUT(i,LEFT(i))) ->
        left--; tokens[i]--; effect(i);
        if :: OUT(i,RIGHT(i)) -> j = RIGHT(i) :: OUT(i,LEFT(i)) -> j = LEFT(i) fi;
        channel[CH(i,j)]!inc[i],TOKEN,cutEpoch[i]; j = 0 }
#ifdef M_LATEMARK
    :: atomic { owe -> owe = 0; markers(i, cutEpoch[i]) }
#endif
#if AGAIN > 0
    :: atomic { again < AGAIN && up[i] && cutEpoch[i] > 0 && objEpoch[i] == cutEpoch[i] ->
        again++; reports!!i,inc[i],cutEpoch[i],1 }
#endif
    /* items of channels */
    :: atomic {
        if :: READY(RIGHT(i),i) -> j = RIGHT(i)
           :: READY(LEFT(i),i) -> j = LEFT(i) fi;
#ifdef M_NOFIFO
        if :: channel[CH(j,i)]??mi,TOKEN,me -> k = TOKEN :: channel[CH(j,i)]?mi,k,me fi;
#else
        channel[CH(j,i)]?mi,k,me;
#endif
        if
#ifndef M_NOFENCE
        :: mi < inc[i] -> PROBE(ZOMBIE_DROPPED)  /* of an older incarnation: dropped, whatever it is */
#endif
        :: else ->
            if
            :: k == TOKEN ->
                tokens[i]++; effect(i);
                if :: open[i] & BIT(j) -> cutChannel[CH(j,i)]++; PROBE(TOKEN_RECORDED) :: else fi;
                if
                :: me == gEpoch && cutEpoch[i] != gEpoch -> wrong = 1                     /* an orphan */
                :: me != gEpoch && cutEpoch[i] == gEpoch && !(open[i] & BIT(j)) -> wrong = 2 /* in flight, not recorded */
                :: me == gEpoch && cutEpoch[i] == gEpoch && (open[i] & BIT(j)) -> wrong = 2  /* recorded, sent after the cut */
                :: else
                fi
            :: k == MARKER ->
                if
                :: me > cutEpoch[i] -> record(i, me, j)
#ifdef M_STALEMARK                             /* a marker of an aborted epoch closes the channel */
                :: me <= cutEpoch[i] -> open[i] = open[i] & ~BIT(j)
#else
                :: me == cutEpoch[i] -> open[i] = open[i] & ~BIT(j)
                :: me < cutEpoch[i]
#endif
                fi;
                complete(i)
            fi
        fi; mi = 0; me = 0; j = 0; k = TOKEN }
#if defined(REACH) && REACH == FUTURE_WAITS
    :: atomic { up[i] && FUTURE(CH(RIGHT(i),i), inc[i]) -> PROBE(FUTURE_WAITS) }
#endif
    /* orders, FIFO */
    :: atomic { orders[i]?k,mi,me,ms ->
        if
#ifndef M_NOSESSION
        :: ms != session[i]                    /* for an earlier session */
#endif
        :: else ->
        if
        :: k == START && up[i] && mi == inc[i] && me > cutEpoch[i] -> record(i, me, N); complete(i)
#if !defined(M_NOREREPORT)
        :: k == START && up[i] && mi == inc[i] && me == cutEpoch[i] && objEpoch[i] == me -> reports!!i,mi,me,0
#endif
#ifdef ALLSTART
        :: k == START && up[i] && mi == inc[i] && me == cutEpoch[i] && objEpoch[i] != me -> PROBE(MARKER_BEFORE_ORDER)
#endif
#ifdef JOIN
        :: k == TOPOLOGY -> told[i] = 1; reports!!i,mi,ACK,0
#endif
        :: k == RESTORE && mi > inc[i] ->
            HOLDS(I23, fence >= mi);
            HOLDS(I24, mi > entered[i]);
            /* the recorded channel states are handed over first, then the state is live again */
            tokens[i] = manTokens[i];
#ifndef M_NOINJECT
            x = 0; do :: x < N -> tokens[i] = tokens[i] + manChannel[CH(x,i)];
                if :: manChannel[CH(x,i)] > 0 -> PROBE(RESTORED_IN_FLIGHT) :: else fi; x++ :: else -> break od; x = 0;
#endif
            inc[i] = mi; entered[i] = mi; up[i] = 1; open[i] = 0; cutTokens[i] = 0;
            x = 0; do :: x < N -> cutChannel[CH(x,i)] = 0; x++ :: else -> break od; x = 0;
            if :: mi > newest -> newest = mi :: else fi;
            reports!!i,mi,ACK,0
#ifndef M_NOREACK
        :: k == RESTORE && up[i] && mi == inc[i] -> reports!!i,mi,ACK,0      /* ordered again: acknowledged again */
#endif
        :: else
        fi fi; mi = 0; me = 0; ms = 0; k = TOKEN }
    od
}

/* the environment */
proctype Faults() {
    byte i, x, a, c; mtype b;
end:
    do
    :: atomic { faults < FAULTS ->
        i = 0;
        do :: i < N-1 -> i++ :: break od;
        if :: up[i] -> faults++; up[i] = 0; tokens[i] = 0; open[i] = 0; inc[i] = 0; cutEpoch[i] = 0; cutTokens[i] = 0;
            x = 0; do :: x < N -> do :: nempty(channel[CH(x,i)]) -> channel[CH(x,i)]?a,b,c :: empty(channel[CH(x,i)]) -> break od; x++ :: else -> break od;
            session[i]++; x = 0; a = 0; c = 0; b = TOKEN
        :: else fi; i = 0 }
    :: atomic { faults < FAULTS -> faults++ }    /* a rollback is ordered, nobody is dead */
    od
}

inline order(who, kind, k, e) {
    x = 0; do :: x < N -> if :: (who) & BIT(x) -> orders[x]!kind,k,e,known[x] :: else fi; x++ :: else -> break od; x = 0
}

/* The manifest's bytes are a function of the ledger: of which reports were named. */
#ifdef M_OWNTERM                      /* and of the term of the leader that makes them */
#define MADE (1 + versions + 8*failovers)
#else
#define MADE (1 + versions)
#endif

#define NEW 0
#define OLD 1
inline put(e, digest, by) {               /* create-only */
    HOLDS(I11, !(gone & BIT(e)));
    if
    :: manifest[e] == 0 -> manifest[e] = digest; if :: by == OLD -> PROBE(DEPOSED_PUTS_FIRST) :: else fi
    :: else -> if :: by == OLD && committed >= e -> PROBE(DEPOSED_PUTS_LATE) :: else fi; HOLDS(I9, manifest[e] == digest)
    fi
}

inline abort() {
    HOLDS(I11, manifest[gEpoch] == 0);
    gone = gone | BIT(gEpoch); phase = IDLE; reported = 0; versions = 0; sealed = 0
}

#if defined(M_ABORTSEALED)            /* a sealed epoch is given up as if it were a started one */
#define ABORTABLE (phase == STARTED || phase == SEALED)
#define UNSEALED true
#else
#define ABORTABLE (phase == STARTED)
#define UNSEALED (phase != SEALED)
#endif

proctype Leader() {
    byte x, w, ri, re, rv, sum;
end:
    do
    :: atomic { phase == IDLE && handled == faults && gEpoch < EPOCHS ->
        gEpoch++; phase = STARTED; wrong = 0;
#ifdef JOIN
        atStart = members;
#endif
#if defined(ALLSTART)
        order(MEMBERS, START, gInc, gEpoch)
#elif defined(M_ONESTART)              /* one start order, to who does not reach everybody */
        order(BIT(N-1), START, gInc, gEpoch)
#else
        order(BIT(0), START, gInc, gEpoch)    /* one initiator, markers do the rest */
#endif
        }
    :: atomic { ABORTABLE && aborts < ABORTS -> aborts++; abort()
#ifdef M_REUSE                         /* the number is used again */
        ; gone = gone & ~BIT(gEpoch); gEpoch--
#endif
        }
#if FAILOVERS > 0
    /* A new leader: what was on its way to the old one is lost, what is open is gone on with from the ledger. */
    :: atomic { failovers < FAILOVERS && (phase == STARTED || phase == SEALED || phase == RESTORING) -> failovers++;
        do :: nempty(reports) -> reports?w,ri,re,rv :: empty(reports) -> break od; w = 0; ri = 0; re = 0; rv = 0;
        if
        :: phase == STARTED -> order(FROZEN & ~reported, START, gInc, gEpoch)
        :: phase == SEALED -> if :: manifest[gEpoch] == 0 -> oldEpoch = gEpoch; oldDigest = sealed :: else fi
        :: phase == RESTORING -> reported = 0; order(ALL, RESTORE, gInc, 0)
        fi }
    :: atomic { oldEpoch > 0 -> put(oldEpoch, oldDigest, OLD); oldEpoch = 0; oldDigest = 0 }    /* the deposed one wakes up */
#endif
#if FAULTS > 0
    :: atomic { handled < faults && UNSEALED ->   /* a sealed epoch is finished first; what is started is aborted */
        if :: ABORTABLE -> abort() :: else fi;
        handled = faults; gInc++; reported = 0;
        x = 0; do :: x < N -> known[x] = session[x]; x++ :: else -> break od; x = 0;
#ifdef M_FENCELATE
        phase = RESTORING; order(ALL, RESTORE, gInc, 0)
#else
        phase = FENCING
#endif
        }
#ifdef M_FENCELATE
    :: atomic { phase == RESTORING && fence < gInc -> fence = gInc }
#else
    :: atomic { phase == FENCING -> fence = gInc; phase = RESTORING; order(ALL, RESTORE, gInc, 0) }
#endif
#endif
#ifdef JOIN
#if defined(M_JOINOPEN)                /* also while an epoch is open */
    :: atomic { members != ALL && (phase == IDLE || phase == STARTED) -> members = ALL; order(ALL, TOPOLOGY, gInc, 0) }
#elif defined(M_NOACCEPT)              /* the next epoch does not wait until all have accepted */
    :: atomic { members != ALL && phase == IDLE -> members = ALL; order(ALL, TOPOLOGY, gInc, 0) }
#else
    :: atomic { members != ALL && phase == IDLE -> members = ALL; phase = JOINING; order(ALL, TOPOLOGY, gInc, 0) }
#endif
#endif
    :: atomic { reports?w,ri,re,rv ->
        if
        :: (phase == RESTORING || phase == JOINING) && ri == gInc && re == ACK ->
            reported = reported | BIT(w);
            if :: reported == ALL -> phase = IDLE; reported = 0 :: else fi
#if defined(M_ANYREPORT)               /* the number of the epoch is not looked at */
        :: phase == STARTED && re != ACK ->
            reported = reported | BIT(w)
#elif defined(M_TWOSEALS)              /* a later report replaces the first one, after the seal too */
        :: (phase == STARTED || phase == SEALED) && ri == gInc && re == gEpoch ->
            reported = reported | BIT(w); versions = (versions & ~BIT(w)) | (rv << w)
#else
        :: phase == STARTED && ri == gInc && re == gEpoch && (FROZEN & BIT(w)) && !(reported & BIT(w)) ->
            reported = reported | BIT(w); versions = versions | (rv << w)
#endif
        :: else                        /* late, of an aborted epoch, of an old incarnation, of a stranger, or a second one */
        fi; w = 0; ri = 0; re = 0; rv = 0 }
#ifdef M_PUTFIRST                      /* the manifest is there before the seal is in the ledger */
    :: atomic { phase == STARTED && reported == FROZEN && manifest[gEpoch] == 0 -> put(gEpoch, MADE, NEW) }
    :: atomic { phase == STARTED && reported == FROZEN && manifest[gEpoch] != 0 ->
#else
    :: atomic { phase == STARTED && reported == FROZEN ->
#endif
        /* the cut is assembled and checked, then the seal is one entry */
        HOLDS(I2, wrong != 1);
        HOLDS(I1, wrong != 2);
        HOLDS(I10, gEpoch > committed);
        sum = 0; x = 0;
        do :: x < N ->
            if :: reported & BIT(x) -> HOLDS(I7, objEpoch[x] == gEpoch); manTokens[x] = objTokens[x]; sum = sum + objTokens[x]; objTokens[x] = 0
               :: else fi; x++
           :: else -> break od;
        x = 0;
        do :: x < N*N -> manChannel[x] = objChannel[x]; sum = sum + objChannel[x]; objChannel[x] = 0; x++ :: else -> break od;
        HOLDS(I5, sum == TOTAL);
        x = 0; sum = 0; phase = SEALED; sealed = MADE }
    :: atomic { phase == SEALED && manifest[gEpoch] == 0 ->
#ifdef M_TWOSEALS                      /* whoever finishes assembles and seals anew */
        sealed = MADE;
#endif
        HOLDS(I9, MADE == sealed);
        put(gEpoch, sealed, NEW) }
    :: atomic { phase == SEALED && manifest[gEpoch] != 0 ->
        HOLDS(I9, manifest[gEpoch] == sealed);
        if :: handled < faults -> PROBE(FAULT_WHILE_SEALED) :: else fi;
        if :: versions > 0 -> PROBE(REPORTED_TWICE) :: else fi;
        if :: reported == ALL -> PROBE(JOINER_IN_CUT) :: else fi;
        committed = gEpoch; phase = IDLE; reported = 0; versions = 0; sealed = 0 }
    od
}

/* When nothing can move any more: nothing hangs, nothing was lost. */
proctype Quiescence() {
    byte x, sum;
    timeout ->
    atomic {
        HOLDS(L1, phase == IDLE && gEpoch == EPOCHS);    /* every epoch has ended */
        HOLDS(L3, handled == faults);
        HOLDS(L1, empty(reports));
        x = 0;
        do :: x < N -> HOLDS(L3, up[x] && inc[x] == gInc && empty(orders[x])); sum = sum + tokens[x]; x++ :: else -> break od;
        x = 0;
        do :: x < N*N -> HOLDS(L3, empty(channel[x])); x++ :: else -> break od;
        HOLDS(I5, sum == TOTAL);                         /* live conservation */
        HOLDS(I23, faults == 0 || fence == gInc);
        x = 1;
        do :: x <= EPOCHS -> HOLDS(I11, (manifest[x] != 0) == !(gone & BIT(x))); x++ :: else -> break od;
        if :: committed == EPOCHS && faults == FAULTS && failovers == FAILOVERS -> PROBE(EVERYTHING) :: else fi
    }
}

init {
    byte x = 0;
    atomic {
        do :: x < N -> up[x] = 1; inc[x] = 1; entered[x] = 1;
            if :: x < TOTAL -> tokens[x] = 1 :: else fi;
            manTokens[x] = tokens[x]; run Participant(x); x++ :: else -> break od;
        run Leader(); run Faults(); run Quiescence()
    }
}

