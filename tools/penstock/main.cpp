#include "tools/penstock/command.h"
#include "tools/system/interrupt.h"
#include "tools/system/standard_streams.h"

int main(int argc, char** argv) {
  penstock::tools::hold_standard_streams();
  penstock::tools::watch_for_interrupts();
  return penstock::tools::run_command(penstock::tools::all_verbs(), {argv + 1, argv + argc});
}
