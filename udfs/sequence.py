def sequence_keys(formats):
    raise NotImplementedError
