#include "triton/workflow.h"

#include <filesystem>
#include <numeric>
#include <set>
#include <utility>

#include "plan/plan.h"
#include "triton/names.h"

namespace rankline {
namespace {

std::string PlanOf(const ModelInfo& step) { return step.directory + "/plan"; }

std::string Shaped(const TensorSpec& spec) { return NameOf(spec.dtype) + ("[" + std::to_string(spec.width)) + "]"; }

// Returns the position of each of the plan's tensors in the config, which may omit masks.
std::vector<size_t> Positions(const ModelInfo& step, const char* side, const std::vector<TensorSpec>& own,
                              const std::vector<TensorSpec>& declared) {
  std::set<std::string> expected, found;
  std::vector<size_t> positions;
  const auto is_mask = [](const TensorSpec& spec) {
    return spec.dtype == Dtype::kBool && spec.optional && EndsWith(spec.name, kMask);
  };
  for (const TensorSpec& spec : own) {
    size_t at = 0;
    while (at < declared.size() && declared[at].name != spec.name) ++at;
    positions.push_back(at);
    if (at < declared.size() && (declared[at].dtype != spec.dtype || declared[at].width != spec.width)) {
      throw ArtifactError("config.pbtxt has '" + spec.name + "' as " + Shaped(declared[at]) + ", but " + PlanOf(step) +
                          " has it as " + Shaped(spec) + ". Export again.");
    }
    if (!is_mask(spec)) expected.insert(spec.name);
  }
  for (const TensorSpec& spec : declared) {
    if (!is_mask(spec)) found.insert(spec.name);
  }
  if (expected != found) {
    throw ArtifactError(std::string("config.pbtxt has ") + side + " " + Listed(found) + ", but " + PlanOf(step) +
                        " has " + Listed(expected) + ". Export again.");
  }
  return positions;
}

// A step's plan, which takes its inputs by their positions in the config.
class Workflow {
 public:
  explicit Workflow(const ModelInfo& step)
      : plan(PlanOf(step), NamesIn(step.Parameter("CANDIDATES", "")), step.WholeNumber("MAX_LIST_LENGTH", 0)),
        inputs_(Positions(step, "inputs", plan.inputs(), step.inputs)) {}

  void Run(const std::vector<Tensor>& given, std::vector<Tensor>& ordered, Scratch& scratch, Sink& sink) const {
    constexpr Tensor kNothing{};
    ordered.resize(inputs_.size());
    for (size_t i = 0; i < inputs_.size(); ++i) ordered[i] = inputs_[i] < given.size() ? given[inputs_[i]] : kNothing;
    plan.Run(ordered, scratch, sink);
  }

  const Plan plan;

 private:
  std::vector<size_t> inputs_;
};

// --- the workflow alone ---

class WorkflowRunner : public Runner {
 public:
  WorkflowRunner(const Workflow& workflow, const std::vector<size_t>& outputs)
      : workflow_(workflow), outputs_(outputs) {}

  void Run(const std::vector<Tensor>& given, Sink& sink) override {
    Placed placed(sink, outputs_);
    workflow_.Run(given, ordered_, scratch_, placed);
  }

 private:
  // Maps outputs to their positions in the config.
  class Placed : public Sink {
   public:
    Placed(Sink& sink, const std::vector<size_t>& outputs) : sink_(sink), outputs_(outputs) {}
    void* Allocate(size_t output, int64_t rows, int64_t width) override {
      return sink_.Allocate(outputs_[output], rows, width);
    }

   private:
    Sink& sink_;
    const std::vector<size_t>& outputs_;
  };

  const Workflow& workflow_;
  const std::vector<size_t>& outputs_;
  std::vector<Tensor> ordered_;
  Scratch scratch_;
};

class WorkflowModel : public LoadedModel {
 public:
  explicit WorkflowModel(const ModelInfo& step)
      : workflow_(step), outputs_(Positions(step, "outputs", workflow_.plan.outputs(), step.outputs)) {}

  std::unique_ptr<Runner> MakeRunner() const override { return std::make_unique<WorkflowRunner>(workflow_, outputs_); }

 private:
  Workflow workflow_;
  std::vector<size_t> outputs_;
};

// --- the workflow before a model ---

class FusedRunner : public Runner {
 public:
  FusedRunner(const Workflow& workflow, std::unique_ptr<Runner> model)
      : workflow_(workflow), model_(std::move(model)), between_(workflow.plan.outputs()) {}

  void Run(const std::vector<Tensor>& given, Sink& sink) override {
    between_.Reset();
    workflow_.Run(given, ordered_, scratch_, between_);
    model_->Run(between_.tensors, sink);
  }

 private:
  // Holds the workflow's outputs, which are the model's inputs.
  class Between : public Sink {
   public:
    explicit Between(const std::vector<TensorSpec>& specs) : tensors(specs.size()), specs_(specs) {}
    void* Allocate(size_t output, int64_t rows, int64_t width) override {
      void* memory = scratch_.TakeBytes(static_cast<size_t>(rows * width) * SizeOf(specs_[output].dtype));
      tensors[output] = {specs_[output].dtype, rows, width, memory};
      return memory;
    }
    void Reset() { scratch_.Reset(); }

    std::vector<Tensor> tensors;

   private:
    const std::vector<TensorSpec>& specs_;
    Scratch scratch_;
  };

  const Workflow& workflow_;
  std::unique_ptr<Runner> model_;
  std::vector<Tensor> ordered_;
  Scratch scratch_;
  Between between_;
};

class FusedModel : public LoadedModel {
 public:
  FusedModel(const ModelInfo& step, Load load) : workflow_(step) {
    ModelInfo model = step;
    model.inputs = workflow_.plan.outputs();
    model_ = load(model);
  }

  std::unique_ptr<Runner> MakeRunner() const override {
    return std::make_unique<FusedRunner>(workflow_, model_->MakeRunner());
  }

  const char* runs() const override { return "the ensemble"; }

 private:
  Workflow workflow_;
  std::unique_ptr<LoadedModel> model_;
};

}  // namespace

std::unique_ptr<LoadedModel> LoadWorkflow(const ModelInfo& step) { return std::make_unique<WorkflowModel>(step); }

std::unique_ptr<LoadedModel> LoadBehindWorkflow(const ModelInfo& step, Load load) {
  if (!std::filesystem::is_directory(PlanOf(step))) return load(step);
  return std::make_unique<FusedModel>(step, load);
}

}  // namespace rankline
