"""Answers that prove the checks of exercises 6.14 and 6.15."""

from twophase_labs.machine.exercise import Bank, Right, Wrong

COPY, DIVERGENCE, SOFTENS, BATCHES, LARGE, TRAINS, TEACHER = (
    "is zero for a student like its teacher",
    "is the divergence from teacher to student",
    "takes a temperature",
    "takes any axes before the last",
    "survives large logits",
    "trains the student",
    "leaves the teacher alone",
)
ROUNDS, CONSTANT, THROUGH = (
    "rounds to the nearest in each group",
    "keeps a group that is all alike",
    "lets gradients through as if nothing were rounded",
)
SOLVED = """
def distillation_loss(student_logits, teacher_logits, temperature):
    log_p = F.log_softmax(teacher_logits.detach() / temperature, dim=-1)
    log_q = F.log_softmax(student_logits / temperature, dim=-1)
    divergence = (log_p.exp() * (log_p - log_q)).sum(-1)
    return temperature**2 * divergence.mean()
"""


def edited(old: str, new: str) -> str:
    assert old in SOLVED, old
    return SOLVED.replace(old, new)


KL_DIV = """
def distillation_loss(student_logits, teacher_logits, temperature):
    log_p = (teacher_logits.detach() / temperature).log_softmax(-1).flatten(0, -2)
    log_q = (student_logits / temperature).log_softmax(-1).flatten(0, -2)
    return F.kl_div(log_q, log_p, reduction="batchmean", log_target=True) * temperature**2
"""
CROSS_ENTROPY = """
def distillation_loss(student_logits, teacher_logits, temperature):
    with torch.no_grad():
        teacher = teacher_logits / temperature
        p = teacher.softmax(-1)
        entropy = -(p * (teacher - teacher.logsumexp(-1, keepdim=True))).sum(-1)
    student = student_logits / temperature
    surprise = student.logsumexp(-1) - (p * student).sum(-1)
    return (surprise - entropy).mean() * temperature * temperature
"""
STRAIGHT_FUNCTION = """
class Straight(torch.autograd.Function):
    @staticmethod
    def forward(ctx, weight, bits, group_size):
        groups = weight.view(len(weight), -1, group_size)
        low, high = groups.aminmax(dim=-1, keepdim=True)
        step = ((high - low) / (2**bits - 1)).clamp(min=1e-12)
        return (torch.round((groups - low) / step) * step + low).view_as(weight)

    @staticmethod
    def backward(ctx, upstream):
        return upstream, None, None


def fake_quantize(weight, bits, group_size):
    return Straight.apply(weight, bits, group_size)
"""

BANKS = {
    "6.14": Bank(
        wrong=(
            Wrong(
                "the other way round",
                edited("log_p.exp() * (log_p - log_q)", "log_q.exp() * (log_q - log_p)"),
                DIVERGENCE,
            ),
            Wrong("a cross-entropy", edited("(log_p - log_q)", "-log_q"), COPY),
            Wrong("the sign", edited("(log_p - log_q)", "(log_q - log_p)"), DIVERGENCE),
            Wrong("a mean over tokens", edited(".sum(-1)", ".mean(-1)"), DIVERGENCE),
            Wrong("a sum over positions", edited("divergence.mean()", "divergence.sum()"), DIVERGENCE),
            Wrong("without T squared", edited("temperature**2 * ", ""), SOFTENS),
            Wrong("T, not squared", edited("temperature**2", "temperature"), SOFTENS),
            Wrong(
                "the teacher at temperature 1",
                edited("teacher_logits.detach() / temperature", "teacher_logits.detach()"),
                SOFTENS,
            ),
            Wrong("the student at temperature 1", edited("student_logits / temperature", "student_logits"), SOFTENS),
            Wrong("times T", edited("student_logits / temperature", "student_logits * temperature"), SOFTENS),
            Wrong(
                "divided by the first axis", edited("divergence.mean()", "divergence.sum() / len(divergence)"), BATCHES
            ),
            Wrong(
                "softmax, then log",
                edited(
                    "F.log_softmax(student_logits / temperature, dim=-1)",
                    "F.softmax(student_logits / temperature, dim=-1).log()",
                ),
                LARGE,
            ),
            Wrong(
                "a little added before log",
                edited(
                    "F.log_softmax(student_logits / temperature, dim=-1)",
                    "(F.softmax(student_logits / temperature, dim=-1) + 1e-20).log()",
                ),
                LARGE,
            ),
            Wrong(
                "exp without the largest",
                edited(
                    "F.log_softmax(student_logits / temperature, dim=-1)",
                    "student_logits / temperature - (student_logits / temperature).exp().sum(-1, keepdim=True).log()",
                ),
                LARGE,
            ),
            Wrong(
                "the student detached",
                edited("student_logits / temperature", "student_logits.detach() / temperature"),
                TRAINS,
            ),
            Wrong(
                "a little added to the teacher's probabilities",
                edited("(log_p - log_q)", "((log_p.exp() + 1e-8).log() - log_q)"),
                COPY,
            ),
            Wrong("the teacher trained too", edited(".detach()", ""), TEACHER),
            Wrong("differences of logits", edited("(log_p - log_q)", "(teacher_logits - student_logits)"), COPY),
            Wrong(
                "squares of logits",
                edited("log_p.exp() * (log_p - log_q)", "(teacher_logits - student_logits) ** 2"),
                COPY,
            ),
        ),
        right=(Right("with kl_div", KL_DIV), Right("cross-entropy less entropy", CROSS_ENTROPY)),
    ),
    "6.15": Bank(
        wrong=(
            Wrong("divides by nothing", {1: "step"}, CONSTANT),
            Wrong("steps of 1e-5 at least", {1: "step.clamp(min=1e-5)"}, ROUNDS),
            Wrong("a little added to the step", {1: "step + 1e-8"}, ROUNDS),
            Wrong("always steps of 1", {1: "torch.ones_like(step)"}, ROUNDS),
            Wrong("codes, not weights", {2: "((groups - low) / step).round()"}, ROUNDS),
            Wrong("without the minimum", {2: "((groups - low) / step).round() * step"}, ROUNDS),
            Wrong("rounds down", {2: "((groups - low) / step).floor() * step + low"}, ROUNDS),
            Wrong("no minimum taken off", {2: "(groups / step).round() * step"}, ROUNDS),
            Wrong("all detached", {3: "rounded.flatten(1).detach()"}, THROUGH),
            Wrong("nothing rounded", {3: "weight + 0 * (rounded.flatten(1) - weight).detach()"}, ROUNDS),
            Wrong("the weight detached", {3: "weight.detach() + (rounded.flatten(1) - weight)"}, THROUGH),
            Wrong("the gradient twice", {3: "2 * weight + (rounded.flatten(1) - 2 * weight).detach()"}, THROUGH),
        ),
        right=(
            Right("a function with its own gradient", STRAIGHT_FUNCTION),
            Right("the rounded part in front", {3: "(rounded.flatten(1) - weight).detach() + weight"}),
            Right("a smallest step", {1: "step.clamp(min=1e-12)"}),
        ),
    ),
}
