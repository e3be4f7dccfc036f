// Triton backend `nvtabular`: serves the compiled workflow at `<version>/plan`. A run costs so little that joining
// requests would cost more than it saves: each runs alone.
#include <set>

#include "plan/plan.h"
#include "triton/backend.h"

namespace rankline {
namespace {

std::string Listed(const std::set<std::string>& names) {
  std::string text = "[";
  for (const std::string& name : names) text += (text.size() > 1 ? ", '" : "'") + name + "'";
  return text + "]";
}

class PlanRunner : public Runner {
 public:
  explicit PlanRunner(const Plan& plan, const std::vector<size_t>& inputs, const std::vector<size_t>& outputs)
      : plan_(plan), inputs_(inputs), outputs_(outputs), given_(inputs.size()) {}

  void Run(const std::vector<Tensor>& given, Sink& sink) override {
    constexpr Tensor kNothing{};
    for (size_t i = 0; i < inputs_.size(); ++i) given_[i] = inputs_[i] < given.size() ? given[inputs_[i]] : kNothing;
    Placed placed(sink, outputs_);
    plan_.Run(given_, scratch_, placed);
  }

 private:
  // Outputs by their positions in the config.
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

  const Plan& plan_;
  const std::vector<size_t>&inputs_, &outputs_;
  std::vector<Tensor> given_;
  Scratch scratch_;
};

class PlanModel : public LoadedModel {
 public:
  explicit PlanModel(const ModelInfo& model)
      : plan_(model.directory + "/plan", NamesIn(model.Parameter("CANDIDATES", "")),
              model.WholeNumber("MAX_LIST_LENGTH", 0)),
        inputs_(Positions(model, "inputs", plan_.inputs(), model.inputs)),
        outputs_(Positions(model, "outputs", plan_.outputs(), model.outputs)) {}

  std::unique_ptr<Runner> MakeRunner() const override { return std::make_unique<PlanRunner>(plan_, inputs_, outputs_); }

 private:
  static std::vector<std::string> NamesIn(const std::string& text) {
    std::vector<std::string> names;
    for (size_t at = 0; at < text.size();) {
      const size_t stop = std::min(text.find(',', at), text.size());
      names.push_back(text.substr(at, stop - at));
      at = stop + 1;
    }
    return names;
  }

  // Where each of the plan's tensors is in the config; a mask may be left out of it.
  static std::vector<size_t> Positions(const ModelInfo& model, const char* side, const std::vector<TensorSpec>& own,
                                       const std::vector<TensorSpec>& declared) {
    std::set<std::string> expected, found;
    std::vector<size_t> positions;
    const auto is_mask = [](const TensorSpec& spec) {
      return spec.dtype == Dtype::kBool && spec.optional && spec.name.find("__valid") != std::string::npos;
    };
    for (const TensorSpec& spec : own) {
      size_t at = 0;
      while (at < declared.size() && declared[at].name != spec.name) ++at;
      positions.push_back(at);
      if (at < declared.size() ? declared[at].dtype != spec.dtype : false) {
        throw ArtifactError("config.pbtxt has '" + spec.name + "' as " + NameOf(declared[at].dtype) + ", " +
                            model.directory + "/plan has it as " + NameOf(spec.dtype) + ". Export again.");
      }
      if (!is_mask(spec)) expected.insert(spec.name);
    }
    for (const TensorSpec& spec : declared) {
      if (!is_mask(spec)) found.insert(spec.name);
    }
    if (expected != found) {
      throw ArtifactError(std::string("config.pbtxt has ") + side + " " + Listed(found) + ", " + model.directory +
                          "/plan has " + Listed(expected) + ". Export again.");
    }
    return positions;
  }

  Plan plan_;
  std::vector<size_t> inputs_, outputs_;
};

}  // namespace

const BackendTraits kBackend = {"the workflow", false};

void OpenBackend(const std::map<std::string, std::string>&) {}

std::unique_ptr<LoadedModel> LoadModel(const ModelInfo& model) { return std::make_unique<PlanModel>(model); }

}  // namespace rankline
