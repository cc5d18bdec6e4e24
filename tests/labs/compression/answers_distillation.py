"""Answers that prove the checks of exercises 6.14 and 6.15."""

from twophase_labs.machine.bank import right, wrong

COPY, DIVERGENCE = "is zero for a student like its teacher", "is the divergence from teacher to student"
SOFTENS, BATCHES, LARGE = "takes a temperature", "takes any axes before the last", "survives large logits"
TRAINS, TEACHER, ROUNDS = "trains the student", "leaves the teacher alone", "rounds to the nearest in each group"
CONSTANT, THROUGH = "keeps a group that is all alike", "lets gradients through as if nothing were rounded"

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

# fmt: off
BANKS = {
    "6.14": (
        wrong("a cross-entropy", "log_p - log_q", "-log_q", by=COPY),
        wrong("the sign", "log_p - log_q", "log_q - log_p", by=DIVERGENCE),
        wrong("a sum over positions", "divergence.mean", "divergence.sum", by=DIVERGENCE),
        wrong("T, not squared", "temperature**2", "temperature", by=SOFTENS),
        wrong("divided by the first axis", "**2 * divergence.mean(", " ** 2 * divergence.sum() / len(divergence",
              by=BATCHES),
        wrong("softmax, then log", ".log_softmax(student_logits / temperature, dim=-1",
              ".softmax(student_logits / temperature, dim=-1).log(", by=LARGE),
        wrong("the student detached", "student_logits / temperature", "student_logits.detach() / temperature",
              by=TRAINS),
        wrong("the teacher trained too", ".detach()", "", by=TEACHER),
        right("with kl_div",
              {1: "log_p = (teacher_logits.detach() / temperature).log_softmax(-1).flatten(0, -2)\nlog_q = (student_logits / temperature).log_softmax(-1).flatten(0, -2)\nreturn F.kl_div(log_q, log_p, reduction='batchmean', log_target=True) * temperature ** 2"}),
        right("cross-entropy less entropy", CROSS_ENTROPY),
    ),
    "6.15": (
        wrong("a little added to the step", {1: "step + 1e-8"}, by=ROUNDS),
        wrong("steps of 1e-5 at least", {1: "step.clamp(min=1e-5)"}, by=ROUNDS),
        wrong("always steps of 1", {1: "torch.ones_like(step)"}, by=ROUNDS),
        wrong("no minimum taken off", {2: "(groups / step).round() * step"}, by=ROUNDS),
        wrong("divides by nothing", {1: "step"}, by=CONSTANT),
        wrong("all detached", {3: "rounded.flatten(1).detach()"}, by=THROUGH),
        wrong("the weight detached", {3: "weight.detach() + (rounded.flatten(1) - weight)"}, by=THROUGH),
        wrong("the gradient twice", {3: "2 * weight + (rounded.flatten(1) - 2 * weight).detach()"}, by=THROUGH),
        right("a function with its own gradient", STRAIGHT_FUNCTION),
        right("a smallest step", {1: "step.clamp(min=1e-12)"}),
    ),
}
