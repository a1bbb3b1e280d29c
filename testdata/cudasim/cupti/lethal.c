// What finalizing does to a process with graphs, as measured on real hardware. Where a measurement leaves a case open,
// the simulator takes the worse: a program that survives here keeps to what is known to be harmless.
#include "cupti.h"

static struct {
  uint64_t at_on, at_off;  // graph launches so far when the first kind went on, the last went off
  uint64_t off_in;         // callback in which that was; 0: a plain thread
  int tainted;             // graphs ran under kinds that went off later, and no finalize followed
  int tainted_before;      // the same before the last kind went off
  int ever_on;
} lethal;

// stale: graphs carry the instruments of an earlier time, and none was launched since the kinds are on again.
static int stale(void) { return lethal.tainted && cupti.hooks->graph_launches == lethal.at_on; }

void lethal_on(void) {
  lethal.at_on = cupti.hooks->graph_launches;
  lethal.ever_on = 1;
  cupti.hooks->graph_kinds_on = 1;
}

void lethal_off(void) {
  lethal.tainted_before = stale();
  lethal.at_off = cupti.hooks->graph_launches;
  lethal.off_in = callback_id;
  if (lethal.at_off > lethal.at_on) lethal.tainted = 1;
  cupti.hooks->graph_kinds_on = 0;
}

// lethal_finalize: harmless without graphs; from a plain thread never, nor where another thread launches graphs (it is
// taken to where it has since the kinds went on); in a callback out of the enabled state, or where
// that same callback has just left it; not where the kinds were switched off earlier, nor soon after they are on again.
int lethal_finalize(void) {
  struct sim_hooks *h = cupti.hooks;
  if (h->graph_execs <= 0 || !h->graph_launches) return 0;
  if (!callback_id) return 1;
  if (lethal.ever_on && h->graph_launches_of_others() > lethal.at_on) return 1;
  if (any_kind()) return stale();
  if (!lethal.ever_on) return 0;
  if (lethal.off_in == callback_id) return lethal.tainted_before;
  return lethal.tainted || h->graph_launches > lethal.at_off;
}

void lethal_forget(void) {
  memset(&lethal, 0, sizeof lethal);
  cupti.hooks->graph_kinds_on = 0;
  cupti.hooks->graph_epoch++;
}
