// Compares what nccl_library.h declares with NCCL's own header, where the build has one. Nothing of it is linked.
#include "runtime/engine/ranks/nccl_library.h"

#if __has_include(<nccl.h>) && __has_include(<cuda_runtime.h>)

#include <nccl.h>

#include <type_traits>

// An older one lacks what is compared, such as the member behind our Config.
#if NCCL_VERSION_CODE >= 21700

namespace penstock::engine::nccl {
namespace {

// What we call NCCL's types.
template <typename Theirs>
struct Ours {
  using Type = Theirs;
};
template <>
struct Ours<ncclResult_t> {
  using Type = Answer;
};
template <>
struct Ours<ncclDataType_t> {
  using Type = DataType;
};
template <>
struct Ours<ncclUniqueId> {
  using Type = UniqueId;
};
template <>
struct Ours<ncclConfig_t> {
  using Type = Config;
};
template <>
struct Ours<ncclComm> {
  using Type = Communicator;
};
template <>
struct Ours<CUstream_st> {
  using Type = void;
};
template <typename Theirs>
struct Ours<Theirs*> {
  using Type = typename Ours<Theirs>::Type*;
};
template <typename Returned, typename... Given>
struct Ours<Returned(Given...)> {
  using Type = typename Ours<Returned>::Type(typename Ours<Given>::Type...);
};
template <typename Theirs, typename Function>
constexpr bool is_declared_alike = std::is_same_v<typename Ours<Theirs>::Type*, Function>;

static_assert(is_declared_alike<decltype(ncclGetVersion), decltype(Functions::get_version)>);
static_assert(is_declared_alike<decltype(ncclGetUniqueId), decltype(Functions::get_unique_id)>);
static_assert(is_declared_alike<decltype(ncclCommInitRankConfig), decltype(Functions::init_rank)>);
static_assert(is_declared_alike<decltype(ncclCommGetAsyncError), decltype(Functions::get_async_error)>);
static_assert(is_declared_alike<decltype(ncclCommAbort), decltype(Functions::abort)>);
static_assert(is_declared_alike<decltype(ncclGroupStart), decltype(Functions::group_start)>);
static_assert(is_declared_alike<decltype(ncclGroupEnd), decltype(Functions::group_end)>);
static_assert(is_declared_alike<decltype(ncclSend), decltype(Functions::send)>);
static_assert(is_declared_alike<decltype(ncclRecv), decltype(Functions::receive)>);
static_assert(is_declared_alike<decltype(ncclGetErrorString), decltype(Functions::error_words)>);
static_assert(is_declared_alike<decltype(ncclGetLastError), decltype(Functions::last_error)>);

constexpr bool is(Answer ours, ncclResult_t theirs) { return static_cast<int>(ours) == static_cast<int>(theirs); }
static_assert(is(Answer::success, ncclSuccess) && is(Answer::unhandled_cuda_error, ncclUnhandledCudaError));
static_assert(is(Answer::system_error, ncclSystemError) && is(Answer::internal_error, ncclInternalError));
static_assert(is(Answer::invalid_argument, ncclInvalidArgument) && is(Answer::invalid_usage, ncclInvalidUsage));
static_assert(is(Answer::remote_error, ncclRemoteError) && is(Answer::in_progress, ncclInProgress));
static_assert(static_cast<int>(DataType::uint8) == static_cast<int>(ncclUint8));
static_assert(sizeof(Answer) == sizeof(ncclResult_t) && sizeof(DataType) == sizeof(ncclDataType_t));
static_assert(sizeof(UniqueId) == sizeof(ncclUniqueId) && alignof(UniqueId) == alignof(ncclUniqueId));

// The beginning of theirs, which is all that 2.14 had.
static_assert(offsetof(Config, size) == offsetof(ncclConfig_t, size));
static_assert(offsetof(Config, magic) == offsetof(ncclConfig_t, magic));
static_assert(offsetof(Config, version) == offsetof(ncclConfig_t, version));
static_assert(offsetof(Config, blocking) == offsetof(ncclConfig_t, blocking));
static_assert(sizeof(Config) == offsetof(ncclConfig_t, cgaClusterSize) + sizeof(int));
static_assert(Config().magic == NCCL_API_MAGIC && kOldestVersion == NCCL_VERSION(2, 14, 0));

}  // namespace
}  // namespace penstock::engine::nccl

#endif
#endif
