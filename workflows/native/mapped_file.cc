#include "mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tensor.h"

namespace rankline {

MappedFile::MappedFile(const std::string& path) {
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
  struct stat about{};
  if (file < 0 || fstat(file, &about) != 0 || !S_ISREG(about.st_mode)) {
    if (file >= 0) close(file);
    throw ArtifactError(path + " cannot be read");
  }
  size_ = static_cast<size_t>(about.st_size);
  void* data = size_ == 0 ? MAP_FAILED : mmap(nullptr, size_, PROT_READ, MAP_SHARED, file, 0);
  close(file);
  if (data == MAP_FAILED) throw ArtifactError(path + " cannot be mapped into memory");
  data_ = static_cast<const char*>(data);
}

MappedFile::~MappedFile() { munmap(const_cast<char*>(data_), size_); }

}  // namespace rankline
