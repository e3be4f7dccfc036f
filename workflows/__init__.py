"""The ground floor: data in, contract out. Never imports TensorFlow, and nothing from the floors above."""
