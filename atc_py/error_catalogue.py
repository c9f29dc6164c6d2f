"""Every error and warning code of atc-py: what it means, where it typically comes from, and what to do.

    E1….  the command line, files, and ONNX models        E2….  options, targets, and compilation
    E30…  OM files, their inputs and outputs               E31…  laws that a plan must keep
    E4….  kernels at run time                              E5….  oracles of `atc check`
    EI…   laws that a graph must keep                      W….   warnings

The frontend and the two verifiers describe their own codes; a test holds that no code is used without being here.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass


@dataclass(frozen=True)
class Entry:
    """One code: `meaning` in a few words, `explanation` with the typical cause, `next_step` what to do about it."""

    code: str
    meaning: str
    explanation: str
    next_step: str = ""

    def to_json(self) -> dict[str, str]:
        """The entry as a JSON object."""
        return asdict(self)


_REPORT = "Please report it, with the model and the output of the same command with --debug."
_AGAIN = "Get the file again, or convert the ONNX model again."
_SEE_INSPECT = "'atc inspect' shows the model's inputs and outputs with their dtypes and shapes."

OWN: dict[str, tuple[str, str, str]] = {
    "E10001": (
        "The command line is wrong",
        "An option, command or code does not exist, has a value that it cannot have, or does not go with another one.",
        "'atc COMMAND --help' lists the options and has examples.",
    ),
    "E10054": (
        "Something required is missing on the command line",
        "An argument or option that the command needs was not given.",
        "'atc COMMAND --help' shows what is required.",
    ),
    "E13001": (
        "A file cannot be written",
        "The folder does not exist or may not be written to, a folder has the name of the file, or the disk is full. "
        "Nothing is left behind, and a file that was there before is as it was.",
        "Make the folder, or choose another place.",
    ),
    "E19998": ("Interrupted", "The command was stopped, for instance by Ctrl-C. It left no file behind.", ""),
    "E20001": (
        "A pass failed",
        "An optimization met a graph that it does not handle. This is a fault of atc-py.",
        "--disable-pass with the name in the message leaves the pass out. " + _REPORT,
    ),
    "E20002": (
        "An optimization option is wrong",
        "--opt-level takes O0 to O3; --disable-pass takes the names of passes, which the message lists.",
        "Correct the name.",
    ),
    "E20003": (
        "A precision mode cannot be used",
        "There is no such mode, or lists are given that the mode has not. Precision is never lowered silently: "
        "'origin', the default, keeps the dtypes of the model.",
        "docs/precision.md has the modes, and which lists go with them.",
    ),
    "E20004": (
        "Only the ONNX model can be compiled so",
        "An OM holds the graph after optimization: it can be compiled again for another target or at a higher level, "
        "but not at a lower one, nor with other input shapes or outputs.",
        "Convert the ONNX model with that option.",
    ),
    "E20010": (
        "The target is not known",
        "--soc-version takes the name of an NPU that atc-py describes, or the path of a target file (.toml).",
        "Use one of the names in the message.",
    ),
    "E20011": (
        "A target file is wrong",
        "The TOML file of --soc-version has errors, or lacks something that a target must say.",
        "Compare it with one of the files in atc_py/target/data.",
    ),
    "E20020": (
        "A module of custom operators cannot be loaded",
        "--custom-ops, Options(custom_ops=...), Session(custom_ops=...) and atc_py.custom.load take a Python file, a "
        "package's folder, or the name of a module that can be imported; it has to declare at least one operator. A "
        "module that fails on import leaves nothing behind.",
        "Correct the module; docs/custom_operators.md has an example that works.",
    ),
    "E20021": (
        "A custom operator's declaration is wrong",
        "Its name is one that atc-py or another module has already, or the inputs, attributes or flags of the "
        "declaration are not as atc_py.custom.declare takes them.",
        "Correct the declaration; names of your own belong into a domain of your own, as in acme::SoftCap.",
    ),
    "E20030": (
        "A graph that is built by hand is wrong",
        "An operator got inputs, attributes or types that its declaration does not take, or a value of another graph.",
        "docs/operators.md lists the operators; the message says what the operator takes.",
    ),
    "E20031": (
        "A node that is asked for is not in the model",
        "--node takes the name of an ONNX node, as Netron and 'atc inspect --tasks' show it.",
        "Correct the name.",
    ),
    "E20040": (
        "An operator does not fit the target's memory",
        "The operands of one operator take more bytes than the device has, and no dimension serves to split it: either "
        "the operator needs a whole dimension at once, or a value that every piece needs is too large by itself.",
        "The message says what takes how much, and which targets have the memory. Smaller input shapes help too "
        "(--input-shape).",
    ),
    "E20041": (
        "A --modify-mixlist file is wrong",
        "It is JSON with black-list, white-list and gray-list, each with to-add and to-remove, lists of operators. An "
        "operator is on one list: black ones stay float32, white ones are narrow, gray ones follow what they read.",
        "docs/precision.md has the form and the operators.",
    ),
    "E20042": (
        "A --keep-dtype file is wrong",
        "A line is the name of a node of the model, or OpType:: and an operator. Nodes whose results are known at "
        "conversion are folded and keep no dtype.",
        "'atc inspect MODEL.onnx' lists the nodes; the message has the nearest name.",
    ),
    "E20043": (
        "A collective lies in a branch or a loop",
        "A collective ends when all devices of its group have come to it. Devices may take different branches of an "
        "If, or leave a loop at different times; then some wait in a collective to which the others never come.",
        "Export the model with the collective outside, or for a constant condition.",
    ),
    "E20050": (
        "A module with fusion rules cannot be used",
        "It cannot be imported, offers no RULES, offers something that is no rule, or a rule has the name of another "
        "rule or pass.",
        "docs/custom_fusion.md has an example.",
    ),
    "E20051": (
        "A --fusion-switch-file is wrong",
        "It has lines NAME:on and NAME:off, or is JSON with Switch, GraphFusion and UBFusion as ATC takes it.",
        "Correct the file; docs/custom_fusion.md has both forms.",
    ),
    "E20060": (
        "A table of buffers is wrong",
        "atc plan-memory takes a CSV file whose first line names the columns id, lower, upper and size, in any order; "
        "the numbers are whole, a size is at least 0, and upper is above lower.",
        "Correct the lines in the message.",
    ),
    "E20061": (
        "The buffers do not fit",
        "No plan within the capacity was found, or there is none because more bytes are live at once.",
        "Give more capacity, or let it search longer with --effort max.",
    ),
    "W20051": (
        "A --fusion-switch-file names passes that are not there",
        "The names are neither passes nor rules of atc-py, nor names of ATC that one of ours stands for. They have no "
        "effect.",
        "'atc explain' shows the names of passes and rules.",
    ),
    "W20041": (
        "A constant overflows in the precision mode's dtype",
        "Values beyond 65504 become infinite in float16. They are not clipped; what is computed from them is infinite "
        "or NaN.",
        "Name the nodes that read it in a --keep-dtype file, or use mixed_bfloat16.",
    ),
    "W20042": (
        "A constant loses its range in the precision mode's dtype",
        "Values below 0.000061 keep fewer bits in float16, and below 0.00000003 they become 0. One value in twenty or "
        "more does.",
        "Name the nodes that read it in a --keep-dtype file, scale it, or use mixed_bfloat16.",
    ),
    "W20001": (
        "The model may not fit into the target's memory",
        "Arena and weights together take more bytes than the target has. The simulator runs it all the same.",
        "Use smaller shapes or batches, or a target with more memory.",
    ),
    "W20003": (
        "An OM with gears cannot be compiled again",
        "Each gear was compiled, but the model cannot be without fixed sizes; so the OM holds no graph for other ones.",
        "Nothing, as long as the gears are enough. Convert the model again for others.",
    ),
    "W30009": (
        "No gear fits; the graph was compiled again",
        "The inputs' sizes are none of those that the OM was compiled for, so its graph was compiled again, in memory.",
        "Use one of the sizes in the message, or convert the model for these too.",
    ),
    "E30001": (
        "An input has the wrong shape",
        "The shape that came does not fit what the model takes: another rank, another fixed size, a symbolic size "
        "outside its range, or two inputs that disagree about one symbol.",
        _SEE_INSPECT,
    ),
    "E30002": (
        "A symbolic size has no value",
        "The inputs that were given do not determine every symbol.",
        _SEE_INSPECT,
    ),
    "E30003": (
        "The shapes need too much memory",
        "Under these shapes the arena would be larger than any machine's memory.",
        "Use smaller shapes; if they are as meant, the file may be damaged.",
    ),
    "E30004": (
        "This machine has not enough memory",
        "The simulation could not allocate what the model needs under these shapes.",
        "Use smaller shapes or a machine with more memory.",
    ),
    "E30005": ("There is no such input", "An input was given under a name that the model does not have.", _SEE_INSPECT),
    "E30006": ("There is no such output", "An output was asked for that the model does not have.", _SEE_INSPECT),
    "E30007": ("An input is missing", "The model has an input that was not given.", _SEE_INSPECT),
    "E30008": (
        "An input has the wrong dtype",
        "Inputs are never converted silently, because that may lose precision.",
        "Convert the array, e.g. x.astype('float32'). " + _SEE_INSPECT,
    ),
    "E30009": (
        "The sizes are no gear of the model",
        "The model was compiled for a list of sizes, and those that came are not among them.",
        "Use one of the sizes in the message, or convert the model with symbolic shapes.",
    ),
    "E30010": (
        "The plan in the OM is damaged",
        "A number in the plan's table contradicts the file. The digests are right, so the file was written so.",
        _AGAIN,
    ),
    "E30011": (
        "The stored plan or graph cannot be read or written",
        "The plan or the canonical graph in the OM is not in its form, or one was built that the form cannot hold.",
        _AGAIN,
    ),
    "E30028": (
        "An output cannot be written into the array that was given",
        "Results are written in place: the array must be C-contiguous and writable, of the output's dtype and shape.",
        "Allocate it with numpy.empty of the shape and dtype in the message, or use Session.run.",
    ),
    "E30030": (
        "The model has no meaning for these shapes",
        "The model assumes something about its input sizes: a Reshape whose element counts must agree, a Squeeze of a "
        "dim that must be 1, a window that must fit. The message names the node, the condition and the sizes.",
        "Give inputs of sizes that meet the condition, or fix the sizes with atc convert --input-shape.",
    ),
    "E30012": (
        "The OM holds no canonical graph",
        "It was written with --canonical=off, so it runs but cannot be compiled again.",
        "Convert the ONNX model again without --canonical=off.",
    ),
    "E30013": (
        "A file cannot be an input or output",
        "The file is no array file that can be used: it is damaged, holds pickled objects, has another suffix than "
        ".npy, .npz or .bin, or its form cannot hold the value.",
        "Write it with numpy.save or numpy.savez, without pickled objects.",
    ),
    "E30014": (
        "A .bin file has the wrong size",
        "Raw files have no header: they must hold exactly the bytes of the input's dtype and shape.",
        "Write the array with x.astype(dtype).tofile(path); give --input-shape when the model's shape is symbolic.",
    ),
    "E30015": (
        "Input files do not match the inputs",
        "There are more files than inputs, or one input is given twice.",
        "Name them: --input name=file.",
    ),
    "E30016": (
        "The shape of an input is not determined",
        "Inputs are drawn, or read raw, in the model's shape, but that is not known.",
        "Give --input-shape, or the input as .npy.",
    ),
    "E30020": (
        "Not an OM file",
        "The file does not start as an OM does: it is something else, or empty.",
        "Check the path.",
    ),
    "E30021": (
        "The OM ends too early",
        "The file is shorter than its header says, as after an interrupted copy.",
        _AGAIN,
    ),
    "E30022": (
        "The OM is damaged",
        "Bytes contradict each other or their digest; the message says where in the file.",
        _AGAIN,
    ),
    "E30023": (
        "The OM is newer than this release",
        "The file was written in a later version of the format.",
        "Install a newer atc-py, or convert the model again with this one.",
    ),
    "E30024": ("The OM cannot be read here", "It is of a kind that atc-py does not read, for instance encrypted.", ""),
    "E30025": (
        "The OM is another compiler's",
        "It holds no plan of atc-py, so it cannot be run here; 'atc inspect' shows what it tells.",
        "Convert the ONNX model that it was made from.",
    ),
    "E30026": (
        "Something cannot be stored in an OM",
        "A size or name is beyond what the format can hold.",
        "The message says which; split the model where it is too large.",
    ),
    "E30027": (
        "What others read of the OM is not what the plan says",
        "MODEL_DEF, TASK_INFO, MODEL_INOUT_INFO and the counts of INFO come from the plan, and one of them differs.",
        _AGAIN,
    ),
    "E30031": (
        "Not a golden file",
        "The file was not written by 'atc golden record', or is damaged.",
        "Record it again.",
    ),
    "E40001": (
        "A kernel failed",
        "An operator could not work on the values that came, for instance an index out of range.",
        "Check the values of the inputs; the message names the task.",
    ),
    "E40002": (
        "A kernel's result does not fit the plan",
        "The result has another dtype or shape than was planned. This is a fault of atc-py, or of the kernel or shape "
        "rule of a custom operator, which the message then names.",
        _REPORT,
    ),
    "E40003": ("There is no kernel", "An operator is declared without a kernel, so it cannot be run.", _REPORT),
    "E40004": (
        "A package that an operator needs is absent",
        "Some operators need a package that atc-py does not install by itself: ImageDecoder needs Pillow.",
        "Install the extra that the message names.",
    ),
    "E40006": (
        "A task read what it does not mean",
        "Under --debug-memory every byte of the arena remembers which task wrote it, as which value. A read met bytes "
        "of another value, bytes that were given up, or bytes that nobody wrote. The plan is wrong.",
        _REPORT,
    ),
    "E40007": (
        "No task can go on",
        "A run with --debug-memory or --shuffle keeps to streams and events. Each stream has come to a task that waits "
        "for an event whose record has not run, or that nobody records: the device would hang. The plan is wrong.",
        "Run 'atc verify' on the file: it names the law that the waits break (E31010).",
    ),
    "E40008": (
        "A collective of several devices cannot be run here",
        "The model computes with other devices (AllReduce, AllGather, AllToAll). The simulator is one device, and what "
        "the others would send is not there. A group of one device is simulated: there a collective is a copy.",
        "Inspect, profile and verify the OM here; run it on devices, or export the model for a group of one.",
    ),
    "E40005": (
        "A custom operator is not here",
        "The OM was made of a model with an operator that a module of somebody's declares. An OM holds no code: the "
        "module is needed wherever the file is run, verified or compiled again. The message says which it was.",
        "Give it with --custom-ops (in Python: Session(..., custom_ops=[...])), or install the package that offers it "
        "in the entry point group 'atc_py.ops'.",
    ),
    "E50001": (
        "The oracle cannot run the model",
        "onnxruntime, or onnx's reference implementation, refused the model or failed on it.",
        "Try the other one: --oracle reference, or --oracle onnxruntime.",
    ),
    "E50002": (
        "The oracle ended its process",
        "onnxruntime crashed or aborted on the model, which the result of the model here says nothing about.",
        "Try --oracle reference, or other inputs; the crash itself is for onnxruntime's maintainers.",
    ),
    "EI000": (
        "A graph stands in two places",
        "Two nodes share one subgraph object. This is a fault of a pass.",
        _REPORT,
    ),
    "EI101": (
        "The text of a graph is wrong",
        "The IR's text form does not parse; the message has line and column.",
        _AGAIN,
    ),
    "EI102": (
        "The text of a graph is beyond a limit",
        "Nesting, rank or a number is larger than any real graph's.",
        _AGAIN,
    ),
    "EI103": ("A graph has no text form", "A graph holds something that its text form cannot say.", _REPORT),
}
"""Codes that have no other home: code → meaning, explanation, next step."""


def catalogue() -> dict[str, Entry]:
    """All codes, sorted."""
    from atc_py.frontend.codes import CODES
    from atc_py.ir import validate
    from atc_py.plan import verify

    found = {code: Entry(code, *texts) for code, texts in OWN.items()}
    found |= {code: Entry(code, meaning, text) for code, (meaning, text) in CODES.items()}
    for law in verify.LAWS:
        found[law.code] = Entry(law.code, f"A plan breaks the law of {law.name}", f"The law: {law.law}.", _REPORT)
    graph_laws = [*validate.GROUND, *validate.LAWS, *(law for laws in validate.STAGES.values() for law in laws)]
    for graph_law in graph_laws:
        text = f"The law: {graph_law.text}. A pass, or a graph in an OM, broke it."
        found[graph_law.code] = Entry(graph_law.code, "A graph breaks a law", text, _REPORT)
    return dict(sorted(found.items()))
