// The truth file: what the simulator really did, as fixed binary structs in a file mapped shared, so kill -9 loses
// nothing. Read by internal/testkit/cudasim/truth.go: change both together, and raise TRUTH_VERSION.
#ifndef CUDASIM_TRUTH_FILE_H
#define CUDASIM_TRUTH_FILE_H
#include <stdint.h>

#define TRUTH_MAGIC "CUDASIM1"
enum {
  TRUTH_VERSION = 1,
  TRUTH_NAMES = 2048,       // function ids, driver first, then each runtime library's table
  TRUTH_NAME_LEN = 64,
  TRUTH_STRINGS = 4096,     // kernel names; string 0 is empty
  TRUTH_STRING_LEN = 128,
  TRUTH_STRIPES = 64,       // counters: one stripe per thread, the last one shared by all further threads
  TRUTH_COPY_KINDS = 16,
  TRUTH_OP_KINDS = 8,
  TRUTH_CHUNK = 256,        // records handed to one thread at a time
};
enum { LEVEL_OFF = 0, LEVEL_COUNTS = 1, LEVEL_CALLS = 2 };
enum { REC_NONE = 0, REC_CALL = 1, REC_OP = 2 };
enum { OP_KERNEL = 1, OP_COPY = 2, OP_MEMSET = 3, OP_HOST = 4 };
// Copy kinds carry the numbers CUPTI gives them.
enum { COPY_HTOD = 1, COPY_DTOH = 2, COPY_DTOD = 8, COPY_HTOH = 9, COPY_PTOP = 10 };
enum { ENGINE_COMPUTE = 0, ENGINE_H2D = 1, ENGINE_D2H = 2, ENGINE_D2D = 3, ENGINE_NONE = 4 };

struct truth_header { // 4096 bytes in the file
  char magic[8];
  uint32_t version, pid;
  uint64_t start_ns; // CLOCK_MONOTONIC ns when the file was made
  uint32_t level, name_count, string_count, shape; // shape: 535 or 580
  uint64_t dropped;  // records that found no room
  uint64_t chunks;   // chunks handed out so far
  uint64_t names_off, strings_off, stripes_off, stripe_size, records_off; // bytes from the file's start
};

struct truth_stripe {
  uint64_t calls[TRUTH_NAMES];            // all calls, by function id
  uint64_t outer[TRUTH_NAMES];            // of those, calls made by the application itself (depth 0)
  uint64_t failed[TRUTH_NAMES];           // of all, calls that returned neither success nor "not ready"
  uint64_t copies[TRUTH_COPY_KINDS][2];   // device copies that were queued: number, bytes
  uint64_t ops[TRUTH_OP_KINDS][2];        // device operations: number, ns on the device
};

struct truth_record { // 128 bytes
  uint32_t type;      // REC_*, written last
  uint32_t fn;        // call: function id; op: OP_* kind
  uint32_t tid;       // caller's thread id in its own pid namespace
  uint32_t depth;     // call: 0 outermost; op: engine
  uint64_t t0, t1;    // call: entry and exit; op: start and end on the device; CLOCK_MONOTONIC ns
  uint64_t id;        // call: its number in the process, from 1; op: number of the driver call that queued it
  uint64_t stream;    // call: stream handle as passed; op: stream id
  uint64_t bytes;
  uint64_t ptr, ptr2; // call: destination or the one handle it is about, source; op: same addresses
  uint32_t grid[3], block[3], shared;
  int32_t result;
  uint32_t kind;      // COPY_* for copies
  uint32_t name;      // string id of the kernel's name
  uint64_t parent;    // number of the outermost call this happened in (its own for depth 0)
  uint64_t aux;       // call: resolved stream id; op: when it was queued, ns
};
_Static_assert(sizeof(struct truth_record) == 128, "records are 128 bytes");
#endif
