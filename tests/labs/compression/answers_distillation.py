"""Answers that prove the check of exercise 6.9."""

from twophase_labs.machine.bank import right, wrong

COPY, DIVERGENCE = "is zero for a student like its teacher", "is the divergence from teacher to student"
SOFTENS, BATCHES, LARGE = "takes a temperature", "takes any axes before the last", "survives large logits"
TRAINS, TEACHER = "trains the student", "leaves the teacher alone"

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

# fmt: off
BANKS = {
    "6.9": (
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
}
