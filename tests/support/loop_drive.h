// LoopDrive is a real drive that really fails: ext4 over a loop device over a sparse file in a tmpfs, whose backing has
// no room, or is not there. Needs root.
#pragma once

#include <unistd.h>

#include <cstdlib>
#include <string>

#include "tests/aio/test_files.h"

namespace penstock::aio {

struct LoopDriveSize {
  uint32_t drive_mib = 256;
  uint32_t backing_mib = 48;  // what of it can be kept
};

class LoopDrive {
 public:
  explicit LoopDrive(LoopDriveSize size = {}) {
    ready_ = geteuid() == 0 &&
             shell(text("cd ", scratch_.path(), " && mkdir back drive && mount -t tmpfs -o size=", size.backing_mib,
                        "M tmpfs back && truncate -s ", size.drive_mib,
                        "M back/img && losetup -f --show back/img > loop && "
                        "mkfs.ext4 -q -F -m 0 -J size=4 -E lazy_itable_init=0,lazy_journal_init=0 "
                        "$(cat loop) && mount -o ",
                        kMountOptions, " $(cat loop) drive"));
  }
  ~LoopDrive() {
    shell("cd " + scratch_.path() + "; fsfreeze -u drive; umount -l drive; losetup -d $(cat loop); umount -l back");
  }

  // False where there is no root, no loop device or no ext4.
  bool ready() const { return ready_; }
  std::string folder() const { return scratch_ / "drive"; }
  // What was promised, the drive below can no longer keep. Of what was written before, all is below by then: a file
  // system that cannot write its own words back later becomes read-only.
  bool fill_backing() { return shell("sync -f " + folder()) && fill(); }
  bool free_backing() { return shell("rm " + (scratch_ / "back/filler")); }
  // Reads end with EIO from now on, and nothing is written any more. What was there at one moment, whatever is under
  // way, is kept for return_backing().
  bool lose_backing() {
    const bool kept = shell("cd " + scratch_.path() +
                            " && fsfreeze -f drive && cp --sparse=always back/img kept && truncate -s 1M back/img");
    const bool lost = kept && fill();
    return shell("fsfreeze -u " + folder()) && lost;
  }
  // REQUIRES: no file of the drive is open.
  bool return_backing() {
    return shell("cd " + scratch_.path() +
                 " && umount drive; losetup -d $(cat loop); rm back/filler && cp --sparse=always kept back/img && "
                 "losetup -f --show back/img > loop && mount -o " +
                 kMountOptions + " $(cat loop) drive");
  }

 private:
  // The journal gets what is asked for, and nothing on its own in the seconds that a test may take.
  static constexpr const char* kMountOptions = "noatime,commit=600";

  bool fill() { return !shell("dd if=/dev/zero of=" + (scratch_ / "back/filler") + " bs=1M"); }
  static bool shell(const std::string& script) {
    return std::system(("bash -c '" + script + "' 2> /dev/null").c_str()) == 0;
  }

  ScratchFolder scratch_;
  bool ready_ = false;
};

}  // namespace penstock::aio
