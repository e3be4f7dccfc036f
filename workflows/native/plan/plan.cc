#include "plan/plan.h"

#include <algorithm>
#include <cstring>
#include <set>

#include "plan/arrays.h"
#include "plan/step.h"

namespace rankline {
namespace {

constexpr int64_t kFormatVersion = 3;
constexpr int32_t kMissingList = -1;
const char* const kValues = "__values";
const char* const kLengths = "__nnzs";
const char* const kMask = "__valid";

// A raw column, and the positions of its tensors in a request.
struct Input {
  std::string name;
  Dtype dtype = Dtype::kInt64;
  bool is_list = false;
  bool is_candidates = false;
  size_t values = 0;  // followed by the lengths of lists
  int mask = -1;
};

// A raw column (numbered -1, -2, …) or an earlier result (numbered 0, 1, …).
using Reference = int64_t;

// Whether a part of a plan depends on inputs with a value per row, or with a value per candidate.
struct Origin {
  bool rows = false;
  bool candidates = false;
};

struct Call {
  std::unique_ptr<const Step> step;
  std::vector<Reference> inputs;
};

// An output column, looked up or computed.
struct Output {
  std::string name;
  Dtype dtype = Dtype::kInt64;
  bool is_lookup = false;
  bool is_list = false;
  bool is_candidates = false;
  int64_t width = 1;  // for lists
  Reference source = 0;
  const char* table = nullptr;
  const int32_t* lengths = nullptr;
  int64_t table_rows = 0;
  size_t first = 0;           // position of its first tensor
  std::vector<size_t> calls;  // needed only by this column
};

std::string Quoted(const std::string& name) { return "'" + name + "'"; }

void RefuseMissing(const std::string& name, const uint8_t* valid, int64_t size) {
  if (MaskOf(valid, size) == nullptr) return;
  const auto* gap = static_cast<const uint8_t*>(std::memchr(valid, 0, static_cast<size_t>(size)));
  throw RequestError(
      "column " + Quoted(name) + " has missing values, first in row " + std::to_string(gap - valid + 1) +
      ", and the workflow does not fill them. Send a value, or add FillMissing or NullToEmptyList to the workflow.");
}

// Returns placeholders for missing values: NaN, zeros or empty strings.
const void* Zeros(Dtype dtype, int64_t count, Scratch& scratch) {
  return WithAnyType(dtype, [&](auto* type) -> const void* {
    using T = ValueOf<decltype(type)>;
    auto* values = scratch.Take<T>(count);
    T nothing{};
    if constexpr (std::is_floating_point_v<T>) nothing = std::numeric_limits<T>::quiet_NaN();
    std::fill(values, values + count, nothing);
    return values;
  });
}

const uint8_t* NoneValid(int64_t count, Scratch& scratch) {
  auto* valid = scratch.Take<uint8_t>(count);
  std::memset(valid, 0, static_cast<size_t>(count));
  return MaskOf(valid, count);
}

}  // namespace

class Plan::Impl {
 public:
  Impl(const std::string& directory, const std::vector<std::string>& candidates, int64_t max_list_length)
      : arrays_(directory), max_list_length_(max_list_length), candidates_(candidates.begin(), candidates.end()) {
    const Json document = Json::Parse(ReadFile(directory + "/plan.json"));
    if (document["format_version"].integer() != kFormatVersion) {
      throw ArtifactError("it has format version " + std::to_string(document["format_version"].integer()) +
                          ", expected " + std::to_string(kFormatVersion));
    }
    for (const Json& entry : document["inputs"].array()) AddInput(entry);
    for (const Json& entry : document["indexes"].array()) AddCall(MakeKeyIndex(entry, arrays_), {&entry["input"]});
    for (const Json& entry : document["steps"].array()) {
      if (entry["kind"].string() == "KeyIndex") {
        AddCall(MakeKeyIndex(entry, arrays_), {&entry["input"]});
      } else {
        std::vector<const Json*> inputs;
        for (const Json& reference : entry["inputs"].array()) inputs.push_back(&reference);
        AddCall(MakeStep(entry["step"], arrays_), inputs);
      }
    }
    if (!document.Get("stacks").is_null()) {
      for (const Json& entry : document["stacks"].array()) AddStack(entry);
    }
    for (const Json& entry : document["columns"].array()) AddOutput(entry);
    CheckCandidates();
    PlanCalls();
  }

  void Run(const std::vector<Tensor>& given, Scratch& scratch, Sink& sink) const {
    if (given.size() != input_specs_.size())
      throw std::runtime_error("the number of tensors differs from the number of inputs");
    scratch.Reset();
    const auto [rows, count] = ShapeOf(given);
    auto* raw = scratch.Take<Column>(static_cast<int64_t>(inputs_.size()));
    for (size_t i = 0; i < inputs_.size(); ++i) {
      const int64_t size = inputs_[i].is_candidates ? rows * count : rows;
      new (raw + i) Column(inputs_[i].is_list ? ListsOf(inputs_[i], given, size, scratch)
                                              : VectorOf(inputs_[i], given, size, scratch));
    }
    auto* results = scratch.Take<Column>(static_cast<int64_t>(calls_.size()));
    const auto run = [&](size_t number) {
      const std::vector<Reference>& inputs = calls_[number].inputs;
      auto** columns = scratch.Take<const Column*>(static_cast<int64_t>(inputs.size()));
      for (size_t k = 0; k < inputs.size(); ++k) columns[k] = inputs[k] < 0 ? raw - inputs[k] - 1 : results + inputs[k];
      new (results + number) Column(calls_[number].step->Run(columns, inputs.size(), scratch));
    };
    for (const size_t number : shared_calls_) run(number);
    for (const Output& output : outputs_) {
      const Scratch::Mark before = scratch.Here();
      for (const size_t number : output.calls) run(number);
      const int64_t size = output.is_candidates ? rows * count : rows;
      const Column& column = output.source < 0 ? raw[-output.source - 1] : results[output.source];
      if (output.is_lookup)
        WriteLookup(output, column, size, rows, count, scratch, sink);
      else
        WriteComputed(output, column, size, rows, count, sink);
      scratch.Release(before);  // lets the next column reuse memory that is in the cache
    }
  }

  std::vector<TensorSpec> input_specs_, output_specs_;

 private:
  // --- loading ---

  void AddInput(const Json& entry) {
    Input input;
    input.name = entry["name"].string();
    input.dtype = DtypeOf(entry["dtype"].string());
    input.is_list = !entry["width"].is_null();
    input.is_candidates = candidates_.count(input.name) != 0;
    input.values = input_specs_.size();
    if (input.is_list && input.is_candidates) throw ArtifactError("candidates " + Quoted(input.name) + " are lists");
    const int64_t width = input.is_list ? entry["width"].integer() : input.is_candidates ? kAnyWidth : 1;
    if (input.is_list) {
      input_specs_.push_back({input.name + kValues, input.dtype, width, true});
      input_specs_.push_back({input.name + kLengths, Dtype::kInt32, 1, true});
    } else {
      input_specs_.push_back({input.name, input.dtype, width, !input.is_candidates});
      if (!IsFloat(input.dtype)) {
        input.mask = static_cast<int>(input_specs_.size());
        input_specs_.push_back({input.name + kMask, Dtype::kBool, width, true});
      }
    }
    inputs_.push_back(std::move(input));
  }

  Reference Referred(const Json& reference) const {
    if (reference.is_string()) {
      for (size_t i = 0; i < inputs_.size(); ++i) {
        if (inputs_[i].name == reference.string()) return -1 - static_cast<Reference>(i);
      }
      throw ArtifactError(Quoted(reference.string()) + " is not one of the inputs");
    }
    if (reference.integer() < 0 || reference.integer() >= static_cast<int64_t>(calls_.size())) {
      throw ArtifactError(std::to_string(reference.integer()) + " is not an earlier result");
    }
    return reference.integer();
  }

  void AddCall(std::unique_ptr<const Step> step, const std::vector<const Json*>& references) {
    Call call;
    call.step = std::move(step);
    for (const Json* reference : references) call.inputs.push_back(Referred(*reference));
    if (call.inputs.empty()) throw ArtifactError("a step has no inputs");
    calls_.push_back(std::move(call));
  }

  // Turns each column of a stack into calls of its own. Older plans stacked columns with the same steps.
  void AddStack(const Json& entry) {
    std::vector<Reference>& made = stacks_.emplace_back();
    const std::vector<Json>& names = entry["inputs"].array();
    for (size_t member = 0; member < names.size(); ++member) {
      Reference column = Referred(names[member]);
      if (column >= 0 || InputOf(column).is_list) throw ArtifactError("a stack contains lists or results");
      for (const Json& step : entry["steps"].array()) {
        calls_.push_back(
            {MakeMemberStep(step, arrays_, static_cast<int64_t>(member), static_cast<int64_t>(names.size())),
             {column}});
        column = static_cast<Reference>(calls_.size()) - 1;
      }
      made.push_back(column);
    }
  }

  const Input& InputOf(Reference reference) const { return inputs_[static_cast<size_t>(-reference - 1)]; }

  void AddOutput(const Json& entry) {
    Output output;
    output.name = entry["name"].string();
    const std::string& kind = entry["kind"].string();
    if (kind == "StackedColumn") {
      const auto& made = At(stacks_, entry["stack"].integer(), "a column refers to a missing stack");
      output.source = At(made, entry["row"].integer(), "a column is missing from its stack");
    } else if (kind == "Column" || kind == "Computed") {
      output.source = Referred(entry[kind == "Column" ? "index" : "source"]);
      output.is_list = !entry["width"].is_null();
      if (output.is_list) output.width = entry["width"].integer();
    } else {
      throw ArtifactError("unknown kind of column " + kind);
    }
    output.is_lookup = kind == "Column";
    if (output.is_lookup)
      ReadTable(entry, output);
    else
      output.dtype = DtypeOf(entry["dtype"].string());
    if (output.dtype == Dtype::kString)
      throw ArtifactError("column " + Quoted(output.name) + " contains strings, which is not supported");
    output.first = output_specs_.size();
    const std::string first = output.is_list ? output.name + kValues : output.name;
    output_specs_.push_back({first, output.dtype, output.is_list ? output.width : 1, false});
    if (output.is_list) output_specs_.push_back({output.name + kLengths, Dtype::kInt32, 1, false});
    outputs_.push_back(std::move(output));
  }

  template <typename T>
  static const T& At(const std::vector<T>& list, int64_t at, const char* otherwise) {
    if (at < 0 || at >= static_cast<int64_t>(list.size())) throw ArtifactError(otherwise);
    return list[static_cast<size_t>(at)];
  }

  void ReadTable(const Json& entry, Output& output) {
    const Array values = arrays_.Numbers(entry["values"]);
    output.table = static_cast<const char*>(values.data);
    output.dtype = values.dtype;
    output.table_rows = values.shape.empty() ? 0 : values.shape[0];
    if (entry["lengths"].is_null()) {
      if (values.shape.size() != 1) throw ArtifactError("a table has an invalid shape");
      return;
    }
    const Array lengths = arrays_.Numbers(entry["lengths"]);
    output.lengths = lengths.as<int32_t>(Dtype::kInt32);
    output.is_list = true;
    if (values.shape.size() != 2 || lengths.size() != output.table_rows)
      throw ArtifactError("a table has an invalid shape");
    output.width = values.shape[1];
    for (int64_t i = 0; i < output.table_rows; ++i) {
      if (output.lengths[i] < 0 || output.lengths[i] > output.width)
        throw ArtifactError("a table contains lists longer than its width");
    }
  }

  void CheckCandidates() {
    for (const std::string& name : candidates_) {
      if (std::none_of(inputs_.begin(), inputs_.end(), [&](const Input& input) { return input.name == name; })) {
        throw ArtifactError("candidates " + Quoted(name) + " are not a raw column");
      }
    }
    std::vector<Origin> origins(calls_.size());
    const auto add = [&](Reference reference, Origin& origin) {
      const Origin of = reference >= 0 ? origins[static_cast<size_t>(reference)]
                                       : Origin{!InputOf(reference).is_candidates, InputOf(reference).is_candidates};
      origin.rows |= of.rows, origin.candidates |= of.candidates;
    };
    for (size_t i = 0; i < calls_.size(); ++i) {
      for (const Reference reference : calls_[i].inputs) add(reference, origins[i]);
    }
    for (Output& output : outputs_) {
      Origin origin;
      add(output.source, origin);
      output.is_candidates = origin.candidates;
      if (origin.candidates && (origin.rows || output.is_list)) {
        throw ArtifactError("column " + Quoted(output.name) + " cannot be computed for several candidates");
      }
      if (output.is_candidates) output_specs_[output.first].width = kAnyWidth;
    }
  }

  // Assigns each call to the only output that needs it, to several outputs, or to none.
  void PlanCalls() {
    constexpr int64_t kNone = -1, kSeveral = -2;
    std::vector<int64_t> users(calls_.size(), kNone);
    const auto use = [&](Reference reference, int64_t user) {
      if (reference < 0) return;
      int64_t& known = users[static_cast<size_t>(reference)];
      known = known == kNone || known == user ? user : kSeveral;
    };
    for (size_t o = 0; o < outputs_.size(); ++o) use(outputs_[o].source, static_cast<int64_t>(o));
    for (size_t i = calls_.size(); i-- > 0;) {
      for (const Reference reference : calls_[i].inputs) {
        if (users[i] != kNone) use(reference, users[i]);
      }
    }
    for (size_t i = 0; i < calls_.size(); ++i) {
      if (users[i] == kSeveral) shared_calls_.push_back(i);
      if (users[i] >= 0) outputs_[static_cast<size_t>(users[i])].calls.push_back(i);
    }
  }

  // --- running ---

  // Returns the number of rows, and of candidates per row (1 if there are none).
  std::pair<int64_t, int64_t> ShapeOf(const std::vector<Tensor>& given) const {
    int64_t rows = -1, count = 1;
    const Input* first = nullptr;
    for (size_t i = 0; i < given.size(); ++i) {
      if (given[i].data == nullptr) continue;
      if (rows >= 0 && given[i].rows != rows) {
        throw RequestError("inputs have different numbers of rows: " + std::to_string(rows) + " and " +
                           std::to_string(given[i].rows) + " (" + Quoted(input_specs_[i].name) +
                           "). Send the same number for each.");
      }
      rows = given[i].rows;
      if (given[i].dtype != input_specs_[i].dtype) {
        throw RequestError("input " + Quoted(input_specs_[i].name) + " is " + NameOf(given[i].dtype) + ", expected " +
                           NameOf(input_specs_[i].dtype) + ".");
      }
    }
    if (rows < 0) throw RequestError("the request has no columns, expected some of " + Names() + ".");
    for (const Input& input : inputs_) {
      const Tensor& values = given[input.values];
      if (input.is_list && max_list_length_ > 0 && values.data != nullptr && values.width > max_list_length_) {
        throw RequestError(Quoted(input.name + kValues) + " has lists of " + std::to_string(values.width) +
                           " values, expected at most " + std::to_string(max_list_length_) + ".");
      }
      if (input.is_candidates) {
        if (values.data == nullptr) throw RequestError("input " + Quoted(input.name) + " is missing.");
        if (values.width < 1) {
          throw RequestError("input " + Quoted(input.name) + " has shape [" + std::to_string(values.rows) + ", " +
                             std::to_string(values.width) + "], expected at least one candidate per row.");
        }
        if (first != nullptr && values.width != count) {
          throw RequestError("rows have " + std::to_string(count) + " candidates of " + Quoted(first->name) + " and " +
                             std::to_string(values.width) + " of " + Quoted(input.name) +
                             ", expected the same number of each.");
        }
        first = &input, count = values.width;
      } else if (!input.is_list && values.data != nullptr && values.width != 1) {
        throw RequestError("input " + Quoted(input.name) + " has " + std::to_string(values.width) +
                           " values per row, expected one value or list per row.");
      }
      if (input.is_list) {
        const Tensor& lengths = given[input.values + 1];
        if (lengths.data != nullptr && lengths.width != 1) {
          throw RequestError("lengths of " + Quoted(input.name) + " have " + std::to_string(lengths.width) +
                             " values per row, expected one.");
        }
      }
      if (input.mask >= 0) {
        const Tensor& mask = given[static_cast<size_t>(input.mask)];
        if (mask.data != nullptr && values.data != nullptr && mask.width != values.width) {
          throw RequestError("valid of " + Quoted(input.name) + " does not match its values.");
        }
      }
    }
    return {rows, count};
  }

  std::string Names() const {
    std::string names;
    for (const Input& input : inputs_) names += (names.empty() ? "[" : ", ") + Quoted(input.name);
    return names + "]";
  }

  static Column VectorOf(const Input& input, const std::vector<Tensor>& given, int64_t size, Scratch& scratch) {
    const Tensor& values = given[input.values];
    Vector vector{input.dtype, size, values.data, nullptr};
    if (values.data == nullptr) {
      vector.values = Zeros(input.dtype, size, scratch);
      if (!IsFloat(input.dtype)) vector.valid = NoneValid(size, scratch);
    } else if (input.mask >= 0) {
      vector.valid = MaskOf(static_cast<const uint8_t*>(given[static_cast<size_t>(input.mask)].data), size);
    }
    return Single(vector);
  }

  static Column ListsOf(const Input& input, const std::vector<Tensor>& given, int64_t rows, Scratch& scratch) {
    const Tensor &values = given[input.values], &lengths = given[input.values + 1];
    Column lists;
    lists.is_list = true, lists.rows = rows;
    auto* offsets = scratch.Take<int64_t>(rows + 1);
    lists.offsets = offsets;
    lists.elements.dtype = input.dtype;
    offsets[0] = 0;
    if (values.data == nullptr || lengths.data == nullptr) {
      if (values.data != lengths.data)
        throw RequestError("input " + Quoted(input.name) + " has only values or only lengths, expected both.");
      std::fill(offsets, offsets + rows + 1, 0);
      lists.elements.values = Zeros(input.dtype, 0, scratch);
      lists.valid = NoneValid(rows, scratch);
      return lists;
    }
    const auto* length = static_cast<const int32_t*>(lengths.data);
    auto* valid = scratch.Take<uint8_t>(rows);
    for (int64_t i = 0; i < rows; ++i) {
      if (length[i] < kMissingList || length[i] > values.width) {
        throw RequestError("lengths of " + Quoted(input.name) + " do not match its shape [" + std::to_string(rows) +
                           ", " + std::to_string(values.width) + "]: " + std::to_string(length[i]) + " in row " +
                           std::to_string(i + 1) + ".");
      }
      valid[i] = length[i] != kMissingList;
      offsets[i + 1] = offsets[i] + std::max(length[i], 0);
    }
    lists.valid = MaskOf(valid, rows);
    lists.elements.size = offsets[rows];
    lists.elements.values = values.data;
    if (rows == 1 || offsets[rows] == rows * values.width) return lists;  // the lists are contiguous
    lists.elements.values = WithAnyType(input.dtype, [&](auto* type) -> const void* {
      using T = ValueOf<decltype(type)>;
      auto* flat = scratch.Take<T>(offsets[rows]);
      const auto* padded = static_cast<const T*>(values.data);
      for (int64_t i = 0; i < rows; ++i) {
        const T* row = padded + i * values.width;
        std::copy(row, row + (offsets[i + 1] - offsets[i]), flat + offsets[i]);
      }
      return flat;
    });
    return lists;
  }

  // Writes a list column's values and lengths.
  static void WriteLists(const Output& output, const Column& lists, Sink& sink) {
    RefuseMissing(output.name, lists.valid, lists.rows);
    RefuseMissing(output.name, lists.elements.valid, lists.elements.size);
    int64_t width = lists.width;
    for (int64_t i = 0; lists.width < 0 && i < lists.rows; ++i)
      width = std::max(width, lists.offsets[i + 1] - lists.offsets[i]);
    width = std::max<int64_t>(width, 1);
    if (lists.elements.dtype != output.dtype) WrongDtype(output, lists.elements.dtype);
    const size_t item = SizeOf(output.dtype);
    auto* values = static_cast<char*>(sink.Allocate(output.first, lists.rows, width));
    auto* lengths = static_cast<int32_t*>(sink.Allocate(output.first + 1, lists.rows, 1));
    for (int64_t i = 0; i < lists.rows; ++i) {
      const int64_t length = lists.offsets[i + 1] - lists.offsets[i];
      if (length > width)
        throw std::runtime_error("column " + Quoted(output.name) + " has lists longer than its width");
      const size_t bytes = static_cast<size_t>(length) * item, all = static_cast<size_t>(width) * item;
      std::memcpy(values, lists.elements.as<char>() + static_cast<size_t>(lists.offsets[i]) * item, bytes);
      std::memset(values + bytes, 0, all - bytes);
      values += all;
      lengths[i] = static_cast<int32_t>(length);
    }
  }

  static void WriteComputed(const Output& output, const Column& column, int64_t size, int64_t rows, int64_t count,
                            Sink& sink) {
    if (column.is_list != output.is_list || column.rows != size) {
      throw std::runtime_error("column " + Quoted(output.name) + " does not have the shape that the plan says");
    }
    if (column.is_list) return WriteLists(output, column, sink);
    RefuseMissing(output.name, column.elements.valid, size);
    if (column.elements.dtype != output.dtype) WrongDtype(output, column.elements.dtype);
    void* values = sink.Allocate(output.first, rows, output.is_candidates ? count : 1);
    std::memcpy(values, column.elements.values, static_cast<size_t>(size) * SizeOf(output.dtype));
  }

  static void WriteLookup(const Output& output, const Column& rows_found, int64_t size, int64_t rows, int64_t count,
                          Scratch& scratch, Sink& sink) {
    const Vector found = Converted(rows_found.elements, Dtype::kInt64, scratch);
    if (rows_found.is_list) {
      Column lists = rows_found;
      if (output.lengths != nullptr) throw std::runtime_error("a step got lists of lists");
      lists.elements = TakeRows(Vector{output.dtype, output.table_rows, output.table, nullptr}, found.as<int64_t>(),
                                found.size, scratch);
      return WriteComputed(output, lists, size, rows, count, sink);
    }
    if (rows_found.rows != size || (output.is_list && output.lengths == nullptr)) {
      throw std::runtime_error("column " + Quoted(output.name) + " does not have the shape that the plan says");
    }
    const int64_t width = output.lengths == nullptr ? 1 : output.width;
    void* values = sink.Allocate(output.first, rows, output.is_candidates ? count : width);
    auto* lengths =
        output.lengths == nullptr ? nullptr : static_cast<int32_t*>(sink.Allocate(output.first + 1, rows, 1));
    WithType(output.dtype, [&](auto* type) {
      using T = ValueOf<decltype(type)>;
      const auto* table = reinterpret_cast<const T*>(output.table);
      auto* to = static_cast<T*>(values);
      for (int64_t i = 0; i < size; ++i) {
        const int64_t row = found.as<int64_t>()[i];
        if (row < 0 || row >= output.table_rows)
          throw std::out_of_range("an index refers to a row that its table does not have");
        if (lengths == nullptr) {
          to[i] = table[row];
        } else {
          std::copy(table + row * width, table + (row + 1) * width, to + i * width);
          lengths[i] = output.lengths[row];
        }
      }
    });
  }

  [[noreturn]] static void WrongDtype(const Output& output, Dtype dtype) {
    throw std::runtime_error("column " + Quoted(output.name) + " is " + NameOf(dtype) + ", expected " +
                             NameOf(output.dtype));
  }

  Arrays arrays_;
  int64_t max_list_length_;
  std::set<std::string> candidates_;
  std::vector<Input> inputs_;
  std::vector<Call> calls_;
  std::vector<std::vector<Reference>> stacks_;  // results of each stack, by column
  std::vector<Output> outputs_;
  std::vector<size_t> shared_calls_;
};

Plan::Plan(const std::string& directory, const std::vector<std::string>& candidates, int64_t max_list_length) {
  try {
    impl_ = std::make_unique<const Impl>(directory, candidates, max_list_length);
  } catch (const std::exception& error) {
    throw ArtifactError(directory + "/plan.json cannot be read (" + error.what() + "). Export again.");
  }
}

Plan::~Plan() = default;

const std::vector<TensorSpec>& Plan::inputs() const { return impl_->input_specs_; }
const std::vector<TensorSpec>& Plan::outputs() const { return impl_->output_specs_; }

void Plan::Run(const std::vector<Tensor>& given, Scratch& scratch, Sink& sink) const {
  impl_->Run(given, scratch, sink);
}

}  // namespace rankline
