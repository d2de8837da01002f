/* The engine for C: optimizer state (and weights, if you like) on drives and in a bounded part of host memory, updated
 * step by step, exactly, and safe against `kill -9`.
 *
 *   penstock_open()      opens the store in the drives' folders, or makes it.
 *   penstock_begin()     a step begins: hyper-parameters of every group.
 *   penstock_gradient()  of a parameter. The engine has taken it when the call returns. Updates begin at once.
 *   penstock_gradient_part()  the same piece by piece, of what is not in the engine's reach as a whole.
 *   penstock_absent()    the parameter has none in this step.
 *   penstock_publish()   the old weights are no longer looked at: new ones may be written from here on.
 *   penstock_step()      ends the step. When it returns, every weight is updated, and the step is durable if it should
 *                        be. (In whole steps the last updates go on under the next forward.)
 *   penstock_discard()   gives the step up instead, as if it had not begun: the weights are the old ones.
 *   penstock_close()     waits for what is under way.
 *
 * What each call returns: 0 (PENSTOCK_OK), or one of enum penstock_code; then penstock_message() says in a sentence
 * what was refused, where and how much, and penstock_remedy() what can be done about it. A call that is refused with
 * PENSTOCK_USAGE has changed nothing, and the engine goes on. After any other failure every verb returns that failure;
 * the store holds the last committed step: close, and open it again.
 *
 * Nothing here ends the program or throws. (A defect of this library that it notices itself does, with a sentence on
 * stderr, rather than write wrong state.) No signal handlers are installed.
 *
 * Threads: an engine may be called from any thread, by one at a time; two engines, on different stores, are
 * independent. The callbacks `log` and `initial` are called on the thread whose call is running, `weights_out` on
 * threads of the engine too; none of them may call this engine. A call while another one of the same engine is running
 * is refused with PENSTOCK_USAGE. fork(): the store belongs to the process that opened
 * it. In a forked child every verb is refused with PENSTOCK_USAGE, and penstock_close() returns without touching the
 * store. Fork freely, but not during a call. A child that opens an engine of its own must have been forked while none
 * was open: it has none of the threads that update. Else penstock_open() is refused with PENSTOCK_USAGE.
 *
 * Ranks: several processes may train one model together, each with its part of the state and with data of its own;
 * see penstock_options.ranks_of_environment. All of them make the same calls in the same order, with the same
 * hyper-parameters and numbers of micro-batches; gradients are each one's own, and are added up, in the order of ranks.
 * A process that dies ends the calls of all with a refusal that names it; opened again, they go on from the last step
 * that all of them have.
 *
 * In struct penstock_options what is zero is the usual choice; it begins with its own size, so that later versions can
 * add fields.
 */
#ifndef PENSTOCK_H
#define PENSTOCK_H

#include <stddef.h>
#include <stdint.h>

/* enum penstock_dtype and struct penstock_rates. */
#if __has_include("penstock_optim.h")
#include "penstock_optim.h"
#include "penstock_version.h"
#else
#include "cpu_optim/penstock_optim.h"
#include "runtime/engine/penstock_version.h"
#endif

#ifdef __cplusplus
extern "C" {
#endif

enum penstock_code {
  PENSTOCK_OK = 0,
  PENSTOCK_USAGE = 2,        /* the request itself is wrong, or made at the wrong time */
  PENSTOCK_DOES_NOT_FIT = 3, /* memory or space: needed and available are both in the message */
  PENSTOCK_ENVIRONMENT = 4,  /* permission, no direct I/O, a lock, an I/O error */
  PENSTOCK_CORRUPT = 5       /* the store fails its checks */
};

/* Of the last call on this thread that was refused. Never NULL; until the next call on this thread. */
PENSTOCK_API const char* penstock_message(void);
PENSTOCK_API const char* penstock_remedy(void);

enum penstock_optimizer {
  PENSTOCK_ADAMW = 0,
  PENSTOCK_ADAM = 1,
  PENSTOCK_ADAGRAD = 2,
  PENSTOCK_LION = 3,
  PENSTOCK_SGD = 4
};

/* What is done about a store that is there, or is not. */
enum penstock_existing {
  PENSTOCK_OPEN_OR_CREATE = 0,
  PENSTOCK_OPEN = 1,   /* refuse if there is none */
  PENSTOCK_CREATE = 2, /* refuse if there is one */
  PENSTOCK_REPLACE = 3 /* what is there is lost */
};

/* From when on a step must survive a crash. */
enum penstock_durability {
  PENSTOCK_EACH_STEP = 0,
  PENSTOCK_EVERY = 1,  /* each durable_every-th step, and when the engine is closed */
  PENSTOCK_AT_EXIT = 2 /* when the engine is closed, or by penstock_settle() */
};

/* What each of several ranks keeps, by ZeRO's stages; it changes no bit. A store is opened as it was made, but for the
 * two that share the state. */
enum penstock_sharing {
  PENSTOCK_SHARE_WEIGHTS = 0, /* stage 3: its part of everything; weights are gathered for each pass */
  PENSTOCK_SHARE_STATE = 1,   /* stages 1 and 2: the same, but what was gathered stays until the step ends */
  PENSTOCK_SHARE_NOTHING = 2  /* stage 0: everything; gradients alone pass between ranks */
};

enum penstock_level { PENSTOCK_INFO = 0, PENSTOCK_WARNING = 1 };

/* As weights_into: new weights go to penstock_options.weights_out, for memory that the engine cannot write. */
#define PENSTOCK_WEIGHTS_OUT ((void*)UINTPTR_MAX)

/* Elements that are gathered at once; see penstock_acquire(). */
#define PENSTOCK_UNIT_AUTO 0xffffffffu

struct penstock_parameter {
  const char* name;
  uint64_t elements; /* 1 or more */
  uint32_t group;    /* of hyper-parameters */
  int dtype;         /* of `initial`, and of what weights_into receives */
  /* What training begins with where the store is made: so many values, read during penstock_open() alone. NULL: see
   * penstock_options.initial. */
  const void* initial;
  /* NULL, PENSTOCK_WEIGHTS_OUT, or receives the new weight, rounded to dtype, to nearest: in penstock_step(), and, if
   * the caller allows it by penstock_publish(), before that; at no other time. Where the parameter's gradient is
   * absent, or the step is skipped, nothing is written. If penstock_step() fails, some parameters may have been
   * written, and others not. */
  void* weights_into;
  uint32_t unit; /* without whole steps: PENSTOCK_UNIT_AUTO. With them: ascending from 0 */
};

struct penstock_options {
  size_t size; /* sizeof(struct penstock_options) */
  /* The store's folders, one on each drive, made where they are missing. */
  const char* const* drives;
  uint32_t drive_count;
  uint32_t threads;    /* that update; 0: one for each processor */
  uint64_t host_bytes; /* all that the engine may take of host memory; the program's own memory is not in it */
  int optimizer;       /* enum penstock_optimizer */
  int existing;        /* enum penstock_existing */
  int durability;      /* enum penstock_durability */
  uint32_t durable_every;
  /* At most so many for each step; 0 is 1. With more than one, sums are kept in host memory, 4 B an element. */
  uint32_t micro_batches;
  uint32_t skip_overflow; /* not 0: a step whose gradients are not finite changes nothing */
  /* Of all gradients together, at most; 0: they are not clipped. A norm that is not a number leaves none in the
   * weights. */
  double clip_norm;
  /* Not 0: the engine keeps the weights too, and lends each unit's to forward and backward: penstock_acquire(). */
  uint32_t whole_steps;
  /* Of every tile on the drives. 0: what crash safety needs. 1: half the space, and a crash loses all. */
  uint32_t slots;
  /* Where penstock_parameter.initial is NULL: fills values [first, first + count) of the parameter; not 0 is a refusal.
   * NULL: they are zero. */
  int (*initial)(void* context, uint32_t parameter, uint64_t first, uint64_t count, float* values);
  void* initial_context;
  /* What was decided and found at opening, line by line. NULL: nobody listens. */
  void (*log)(void* context, int level, const char* line);
  void* log_context;
  /* Where the store is made: so many steps count as done. Moments and update counts are zero all the same; to make a
   * larger store of another one, copy them with penstock_write() and penstock_set_count(). */
  uint64_t initial_step;
  /* Is given the new weights of parameters with PENSTOCK_WEIGHTS_OUT when weights_into would be written: `count` values
   * from `first` on, at most 2^20, in the parameter's dtype, which stay where they are until it returns. Pieces come in
   * any order; where one comes again, the last counts. From any thread, by one at a time, until penstock_close() has
   * returned. What is not 0 is a failure of the engine. */
  int (*weights_out)(void* context, uint32_t parameter, uint64_t first, uint64_t count, int dtype, const void* values);
  void* weights_out_context;
  /* Not 0: this process is one of several ranks, by RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT as torchrun sets
   * them, or by Slurm's variables; where there are none it is alone. Needs whole_steps, and parameters without
   * weights_into. host_bytes and the drives are this rank's, which on one host may be the same folders for all.
   * penstock_open() waits up to 5 minutes for the others. Refused of several: penstock_write(), penstock_adopt(),
   * penstock_count() and penstock_set_count(). */
  uint32_t ranks_of_environment;
  int sharing; /* enum penstock_sharing; of one rank it is nothing */
  /* A rank that makes no call for so long, and three times as long as ever before, is taken to hang; 0: 20 s. */
  double hangs_after_s;
};

struct penstock_engine;

/* `*engine` is set if 0 is returned, and NULL otherwise. An existing store is opened at its last committed step; one of
 * other parameters is refused. */
PENSTOCK_API int penstock_open(const struct penstock_options* options, const struct penstock_parameter* parameters,
                               uint32_t parameter_count, struct penstock_engine** engine);
/* Waits for what is under way and makes the last step durable. NULL is allowed and does nothing. The engine is gone
 * whatever is returned, but for PENSTOCK_USAGE: another call of it is running, and nothing has happened. A step that
 * has begun is given up. */
PENSTOCK_API int penstock_close(struct penstock_engine* engine);

/* -- a step -------------------------------------------------------------------------------------------------------- */

/* `groups`: the hyper-parameters of each, by number. Gradients are divided by the loss scale. */
PENSTOCK_API int penstock_begin(struct penstock_engine* engine, const struct penstock_rates* groups,
                                uint32_t group_count, uint32_t micro_batches, double loss_scale);
/* All of the parameter's values. Micro-batches of a parameter come in ascending order, all of them; they are added up
 * in fp32. Parameters come in any order; the engine reads ahead from the last to the first, as backward makes them, and
 * reads up to twice as much where they come in another. */
PENSTOCK_API int penstock_gradient(struct penstock_engine* engine, uint32_t parameter, uint32_t micro_batch, int dtype,
                                   const void* values);
/* The same of values [first, first + count) of it: from its first value on, each piece where the one before has ended.
 * Nothing of another parameter comes before the last piece. With one micro-batch the engine keeps no more of a large
 * parameter's gradient than the updates under way need. */
PENSTOCK_API int penstock_gradient_part(struct penstock_engine* engine, uint32_t parameter, uint32_t micro_batch,
                                        uint64_t first, uint64_t count, int dtype, const void* values);
/* The parameter has no gradient in this step, from any micro-batch: as in PyTorch, it is not updated, and the step does
 * not count as one of its updates. */
PENSTOCK_API int penstock_absent(struct penstock_engine* engine, uint32_t parameter);

/* The caller looks no more at the weights that the step began with: from here on weights_into is written as updates
 * end. Of updates that have ended before, penstock_step() reads the new weights from the store. A caller whose backward
 * is over before its first penstock_gradient() calls this behind penstock_begin(), and nothing is read twice. */
PENSTOCK_API int penstock_publish(struct penstock_engine* engine);

enum penstock_verdict {
  PENSTOCK_CONFIRMED = 0,
  PENSTOCK_CLIPPED = 1, /* the gradients were larger than clip_norm */
  PENSTOCK_SKIPPED = 2  /* they were not finite */
};

struct penstock_report {
  uint64_t step; /* counts from 1 */
  int verdict;   /* enum penstock_verdict */
  double gradient_norm, clip_factor;
  double wall_s;                      /* since penstock_begin() */
  uint64_t read_bytes, written_bytes; /* by the drives, since the report before */
};

/* `state`: up to 64 KiB that come back from penstock_restored_state() when the store is opened at this step; NULL with
 * 0 B for none. `report` may be NULL. Refused if a parameter has had no gradient and was not declared absent. */
PENSTOCK_API int penstock_step(struct penstock_engine* engine, const void* state, size_t state_bytes,
                               struct penstock_report* report);
/* As if penstock_begin() had not been called. What penstock_publish() has let be written is written again with the
 * store's weights; without it no weight has changed. */
PENSTOCK_API int penstock_discard(struct penstock_engine* engine);

/* -- whole steps: the weights, too, are in the tiers ------------------------------------------------------------- */

enum penstock_direction { PENSTOCK_FORWARD = 0, PENSTOCK_BACKWARD = 1 };

struct penstock_pass {
  uint32_t unit;
  uint32_t micro_batch;
  int direction; /* enum penstock_direction */
};

/* The passes of the step that has begun, in the order in which they must be acquired: *count of them, of which up to
 * `room` are written to `passes`. */
PENSTOCK_API int penstock_passes(struct penstock_engine* engine, struct penstock_pass* passes, size_t room,
                                 size_t* count);
/* The unit's weights are in memory until penstock_release(); penstock_weight() says where. Gradients are given between
 * acquire and release of their backward pass. */
PENSTOCK_API int penstock_acquire(struct penstock_engine* engine, const struct penstock_pass* pass);
PENSTOCK_API int penstock_release(struct penstock_engine* engine, const struct penstock_pass* pass);
/* The fp32 values of a parameter of the unit that is acquired. */
PENSTOCK_API int penstock_weight(struct penstock_engine* engine, uint32_t parameter, const float** values);

/* Between steps: forward passes that change nothing, for evaluation, up to penstock_end_forward(). They are acquired
 * and released in any order and number, one at a time; their micro_batch is not looked at. */
PENSTOCK_API int penstock_begin_forward(struct penstock_engine* engine);
PENSTOCK_API int penstock_end_forward(struct penstock_engine* engine);

/* -- between steps ----------------------------------------------------------------------------------------------- */

enum penstock_role {
  PENSTOCK_WEIGHT = 0,   /* the fp32 master */
  PENSTOCK_MOMENTUM = 1, /* exp_avg; SGD's and Lion's momentum */
  PENSTOCK_VARIANCE = 2  /* exp_avg_sq; Adagrad's sum */
};

/* Values [first, first + count) of a parameter, in any of the dtypes. What was written is durable on return. */
PENSTOCK_API int penstock_read(struct penstock_engine* engine, uint32_t parameter, int role, uint64_t first,
                               uint64_t count, int dtype, void* values);
PENSTOCK_API int penstock_write(struct penstock_engine* engine, uint32_t parameter, int role, uint64_t first,
                                uint64_t count, int dtype, const void* values);
/* What is written, adopted and counted between the two becomes durable together, when penstock_end_writes() returns. An
 * engine that is closed in between has written nothing. No step begins in between. */
PENSTOCK_API int penstock_begin_writes(struct penstock_engine* engine);
PENSTOCK_API int penstock_end_writes(struct penstock_engine* engine);
/* Somebody else may have written weights [first, first + count): masters that still round to their weight stay, the
 * others become it. *changed (may be NULL): how many. */
PENSTOCK_API int penstock_adopt(struct penstock_engine* engine, uint32_t parameter, uint64_t first, uint64_t count,
                                int dtype, const void* weights, uint64_t* changed);
/* How many updates the parameter has had. */
PENSTOCK_API int penstock_count(struct penstock_engine* engine, uint32_t parameter, uint64_t* count);
PENSTOCK_API int penstock_set_count(struct penstock_engine* engine, uint32_t parameter, uint64_t count);
/* Where the parameter's new weights go from now on, and as what: see penstock_parameter.weights_into. */
PENSTOCK_API int penstock_set_weights_into(struct penstock_engine* engine, uint32_t parameter, int dtype,
                                           void* weights_into);
/* Waits until the last step is durable, whatever the durability. */
PENSTOCK_API int penstock_settle(struct penstock_engine* engine);

/* Keeps the last step beside the store, under `kept` in its folders, until it is dropped: a copy of what steps
 * update, which takes its space again unless the file system shares blocks (XFS, btrfs). Keeping it once more copies it
 * again only if the store was written to since, or has gone back: then the copy that was there is lost. */
PENSTOCK_API int penstock_keep(struct penstock_engine* engine, uint64_t* step);
/* The steps that are kept, ascending. */
PENSTOCK_API int penstock_kept(struct penstock_engine* engine, uint64_t* steps, size_t room, size_t* count);
/* A number for the state that is kept as that step or, where none is, that the store is at: after a rollback, or a
 * write between steps, the same step is another state, with another mark. */
PENSTOCK_API int penstock_mark(struct penstock_engine* engine, uint64_t step, uint64_t* mark);
/* The store becomes what it was at that step, which stays kept. weights_into is not written. */
PENSTOCK_API int penstock_roll_back(struct penstock_engine* engine, uint64_t step);
PENSTOCK_API int penstock_drop(struct penstock_engine* engine, uint64_t step);

/* -- what is known ----------------------------------------------------------------------------------------------- */

/* Which of how many ranks this process is: 0 of 1 where it is alone. Either may be NULL. */
PENSTOCK_API int penstock_rank(struct penstock_engine* engine, uint32_t* rank, uint32_t* ranks);
PENSTOCK_API int penstock_steps(struct penstock_engine* engine, uint64_t* steps);
/* What penstock_step() was given with the step that the store was opened at, or rolled back to. Until the next of the
 * two, or penstock_close(). */
PENSTOCK_API int penstock_restored_state(struct penstock_engine* engine, const void** state, size_t* state_bytes);
/* 32 digits that no other store has; a store that is replaced gets others. */
PENSTOCK_API const char* penstock_store_id(struct penstock_engine* engine);

struct penstock_statistics {
  uint64_t parameters, elements;
  uint64_t host_bytes;                /* that are planned, of penstock_options.host_bytes */
  uint64_t read_bytes, written_bytes; /* by the drives since the store was opened */
};
PENSTOCK_API int penstock_get_statistics(struct penstock_engine* engine, struct penstock_statistics* statistics);
/* Budget lines, I/O engine, tiles, threads: what `log` heard at opening. */
PENSTOCK_API const char* penstock_description(struct penstock_engine* engine);

#ifdef __cplusplus
}
#endif
#endif
