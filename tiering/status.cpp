#include "tiering/status.h"

#include <cerrno>
#include <system_error>

namespace penstock {
namespace {

Code code_of_errno(int error) {
  switch (error) {
    case ENOENT:
    case ENOTDIR:
    case EISDIR:
    case EEXIST:
    case ENAMETOOLONG:
      return Code::kUsage;
    case ENOSPC:
    case EDQUOT:
    case ENOMEM:
    case EFBIG:
      return Code::kDoesNotFit;
    default:
      return Code::kEnvironment;
  }
}

// For refusals that know no better way out.
const char* usual_remedy(int error) {
  switch (error) {
    case ENOENT:
    case ENOTDIR:
    case EISDIR:
    case ENAMETOOLONG:
      return "check the path";
    case EACCES:
    case EPERM:
      return "a path that you may read and write";
    case EROFS:
      return "a path on a file system that is mounted for writing";
    case ENOSPC:
    case EDQUOT:
      return "free some space";
    case EIO:
      return "look at `dmesg`: the drive may be failing";
    case EMFILE:
      return "raise `ulimit -n`";
    case ENFILE:
      return "raise sysctl fs.file-max";
    default:
      return "";
  }
}

}  // namespace

const std::string& Status::nothing() {
  static const std::string kNothing;
  return kNothing;
}

std::string errno_name(int error) {
  switch (error) {
#define PENSTOCK_NAME(name) \
  case name:                \
    return #name;
    PENSTOCK_NAME(EACCES)
    PENSTOCK_NAME(EAGAIN)
    PENSTOCK_NAME(EBADF)
    PENSTOCK_NAME(EBUSY)
    PENSTOCK_NAME(ECANCELED)
    PENSTOCK_NAME(EDQUOT)
    PENSTOCK_NAME(EEXIST)
    PENSTOCK_NAME(EFAULT)
    PENSTOCK_NAME(EFBIG)
    PENSTOCK_NAME(EINTR)
    PENSTOCK_NAME(EINVAL)
    PENSTOCK_NAME(EIO)
    PENSTOCK_NAME(EISDIR)
    PENSTOCK_NAME(EMFILE)
    PENSTOCK_NAME(ENFILE)
    PENSTOCK_NAME(ENODEV)
    PENSTOCK_NAME(ENOENT)
    PENSTOCK_NAME(ENOMEM)
    PENSTOCK_NAME(ENOSPC)
    PENSTOCK_NAME(ENOSYS)
    PENSTOCK_NAME(ENOTDIR)
    PENSTOCK_NAME(ENXIO)
    PENSTOCK_NAME(EOPNOTSUPP)
    PENSTOCK_NAME(EPERM)
    PENSTOCK_NAME(EROFS)
    PENSTOCK_NAME(ESTALE)
    PENSTOCK_NAME(ETIMEDOUT)
    PENSTOCK_NAME(EXDEV)
#undef PENSTOCK_NAME
    default:
      return "errno " + std::to_string(error);
  }
}

Status errno_status(const std::string& what_and_where, int error, std::string remedy) {
  if (remedy.empty()) remedy = usual_remedy(error);
  return Status(code_of_errno(error),
                text(what_and_where, ": ", errno_name(error), " (", std::generic_category().message(error), ")"),
                std::move(remedy));
}

Status thread_status(const std::string& what_and_where, int error, const std::string& or_else) {
  return errno_status(what_and_where, error, or_else + "raise `ulimit -u`, `ulimit -v` or the cgroup's pids.max");
}

}  // namespace penstock
