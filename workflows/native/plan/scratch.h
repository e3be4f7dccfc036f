// Memory of one thread for intermediate results of a run.
#ifndef RANKLINE_PLAN_SCRATCH_H_
#define RANKLINE_PLAN_SCRATCH_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <vector>

namespace rankline {

// An arena: memory is handed out in pieces and released all at once, so a run allocates nothing if an earlier run was
// as large.
class Scratch {
 public:
  // Returns uninitialized, aligned memory for `count` values.
  template <typename T>
  T* Take(int64_t count) {
    if (count < 0 || static_cast<uint64_t>(count) > kMax / sizeof(T)) throw std::bad_alloc();
    return static_cast<T*>(TakeBytes(static_cast<size_t>(count) * sizeof(T)));
  }

  void* TakeBytes(size_t bytes) {
    bytes = (bytes + kAlignment - 1) / kAlignment * kAlignment;
    if (blocks_.empty() || blocks_.back().size - used_ < bytes) Grow(bytes);
    void* memory = blocks_.back().data.get() + used_;
    used_ += bytes;
    return memory;
  }

  // Release returns memory handed out since the mark, unless it required a new block.
  struct Mark {
    size_t blocks;
    size_t used;
  };
  Mark Here() const { return {blocks_.size(), used_}; }
  void Release(Mark mark) {
    if (mark.blocks == blocks_.size()) used_ = mark.used;
  }

  // Releases everything. Merges several blocks into one of the same size, unless a rare large request caused them.
  void Reset() {
    if (blocks_.size() > 1) {
      const size_t all = total_;
      blocks_.clear(), total_ = used_ = 0;
      Grow(all < kKept ? all : kFirst);
    }
    used_ = 0;
  }

 private:
  static constexpr size_t kAlignment = 64;
  static constexpr size_t kFirst = size_t{1} << 16;
  static constexpr size_t kKept = size_t{1} << 26;  // 64 MiB
  static constexpr uint64_t kMax = uint64_t{1} << 40;

  struct Free {
    void operator()(char* memory) const { ::operator delete[](memory, std::align_val_t{kAlignment}); }
  };
  struct Block {
    std::unique_ptr<char[], Free> data;
    size_t size;
  };

  void Grow(size_t bytes) {
    size_t size = total_ > kFirst ? total_ : kFirst;
    if (size < bytes) size = bytes;
    blocks_.push_back({std::unique_ptr<char[], Free>(new (std::align_val_t{kAlignment}) char[size]), size});
    total_ += size;
    used_ = 0;
  }

  std::vector<Block> blocks_;
  size_t used_ = 0;  // in the last block
  size_t total_ = 0;
};

}  // namespace rankline

#endif  // RANKLINE_PLAN_SCRATCH_H_
