#include "aio/drive_queue.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace penstock::aio {
namespace {

// A heap has its greatest element at the front, so "less" means "less urgent".
bool less_urgent(const PendingIo& a, const PendingIo& b) {
  if (a.request->deadline != b.request->deadline) return a.request->deadline > b.request->deadline;
  return a.arrival > b.arrival;
}

}  // namespace

const char* name_of(Operation operation) {
  switch (operation) {
    case Operation::read:
      return "read";
    case Operation::write:
      return "write";
    case Operation::flush:
      return "flush";
  }
  return "?";
}

void DriveQueue::push(PendingIo pending) {
  counters_.bytes_queued += pending.length_bytes;
  if (pending.request->operation == Operation::flush) {
    flushes_.push_back(std::move(pending));
    return;
  }
  std::vector<PendingIo>& heap = pending.request->operation == Operation::read ? reads_ : writes_;
  heap.push_back(std::move(pending));
  std::push_heap(heap.begin(), heap.end(), less_urgent);
}

std::optional<PendingIo> DriveQueue::next_piece() {
  if (!may_issue()) return std::nullopt;
  ++in_flight_;
  if (!flushes_.empty()) {
    PendingIo flush = std::move(flushes_.front());
    flushes_.pop_front();
    return flush;
  }
  const bool read = writes_.empty() || (read_is_next_ && !reads_.empty());
  read_is_next_ = !read;
  return cut_piece(read ? reads_ : writes_);
}

PendingIo DriveQueue::cut_piece(std::vector<PendingIo>& heap) {
  PendingIo& front = heap.front();
  // If another part of the request was refused, this one goes in one piece: the engine only counts it.
  const bool whole = front.length_bytes <= options_.block_bytes || !front.request->refusal.ok();
  if (whole) {
    counters_.bytes_queued -= front.length_bytes;
    std::pop_heap(heap.begin(), heap.end(), less_urgent);
    PendingIo piece = std::move(heap.back());
    heap.pop_back();
    return piece;
  }
  PendingIo piece = front;
  piece.length_bytes = options_.block_bytes;
  counters_.bytes_queued -= piece.length_bytes;
  front.offset_bytes += piece.length_bytes;
  front.data += piece.length_bytes;
  front.length_bytes -= piece.length_bytes;
  front.attempts = 0;
  ++piece.request->open_parts;
  return piece;
}

void DriveQueue::note_moved(Operation operation, uint64_t bytes) {
  switch (operation) {
    case Operation::read:
      ++counters_.reads;
      counters_.read_bytes += bytes;
      break;
    case Operation::write:
      ++counters_.writes;
      counters_.written_bytes += bytes;
      break;
    case Operation::flush:
      ++counters_.flushes;
      break;
  }
  rate_.add(bytes);
}

std::vector<PendingIo> DriveQueue::take_all() {
  std::vector<PendingIo> all(std::make_move_iterator(flushes_.begin()), std::make_move_iterator(flushes_.end()));
  std::move(reads_.begin(), reads_.end(), std::back_inserter(all));
  std::move(writes_.begin(), writes_.end(), std::back_inserter(all));
  flushes_.clear();
  reads_.clear();
  writes_.clear();
  counters_.bytes_queued = 0;
  return all;
}

}  // namespace penstock::aio
