"""The student of the section on distillation: a copy of its teacher's first layers, which leaves the teacher as it is."""

import torch

from twophase_labs.compression.students import Student
from twophase_labs.decode.tiny_llama import NUM_LAYERS, VOCAB, tiny_llama


def test_a_student_of_all_layers_and_tokens_is_its_teacher():
    _, large = tiny_llama()
    ids = torch.tensor([[5, 9, 80, 3]])
    with torch.no_grad():
        got = Student(large, torch.arange(VOCAB), NUM_LAYERS)(ids)
        assert torch.allclose(got, large(ids).logits, atol=1e-5)


def test_training_leaves_the_teacher_as_it_is():
    _, large = tiny_llama()
    before = {name: value.clone() for name, value in large.state_dict().items()}
    student = Student(large, torch.tensor([6, 7, 8, 9]), 1)
    optimizer = torch.optim.AdamW([one for one in student.parameters() if one.requires_grad], lr=0.1)
    student(torch.tensor([[3, 4, 5]])).logsumexp(-1).sum().backward()
    optimizer.step()
    assert all(torch.equal(value, before[name]) for name, value in large.state_dict().items())
